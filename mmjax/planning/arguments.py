"""Flags that `mmjax.plan` and `mmjax.simulate` share, and the planning problem that they describe."""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mmjax import cli

if TYPE_CHECKING:
    from configs.clusters import ClusterConfig
    from sharding.costs.profiled import Profile
    from sharding.planners.fixed_ranks import FixedRanks
    from sharding.planners.problem import PlanningProblem

MODEL_ROWS = 1920
"""Rows of the global batch of a model without a workload: DistTrain's."""

DEFAULT_GIN_FILE = "models/mllm_72b.gin"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProblemArguments(cli.GinArguments):
    """A planning problem: a configuration and a cluster."""

    cluster: str = cli.flag("a800", "Name of a cluster (configs/clusters.py).", metavar="NAME")
    devices: int | None = cli.flag(
        None, "Devices of the cluster; without the flag a node's, or the plan's.", metavar="N", parse=cli.integer(1)
    )
    data: str = cli.flag(
        "", "Described data for a model: a file of configs/data; without the flag, one that suits it.", metavar="NAME"
    )
    batch_rows: int | None = cli.flag(
        None,
        f"Rows of the global batch; without the flag, the configuration's, and {MODEL_ROWS:,} for a model.",
        metavar="N",
        parse=cli.integer(1),
    )
    trainable: tuple[str, ...] = cli.flag(
        ("all",), "Parts of a model that train, or all, or projectors.", metavar="PARTS", parse=cli.list_of(str)
    )
    profile: str = cli.flag(
        "", "Profile (python -m mmjax.profile) to cost layers by; without the flag, a roofline.", metavar="FILE"
    )
    allow_other_device: bool = cli.flag(False, "Accepts a profile of other hardware than the cluster's.")


@dataclasses.dataclass(frozen=True)
class ProblemInputs:
    """What a command line says of a planning problem, checked.

    Attributes:
        config: The training run or workload.
        cluster: The cluster.
        devices: Number of its devices; None if the flags do not give it.
        profile: Measured times of layers, if there are some.
        name: The configuration files and the data, for titles.
    """

    config: Any
    cluster: "ClusterConfig"
    devices: int | None
    profile: "Profile | None"
    name: str

    def problem(
        self, devices: int | None = None, fixed_ranks: "Mapping[str, FixedRanks] | None" = None
    ) -> "PlanningProblem":
        """The planning problem, for which rows are drawn from the data.

        Args:
            devices: Number of devices if the flags do not give it; None for that of a node.
            fixed_ranks: Context-parallel and expert ranks by module.

        Raises:
            PlanError: A module of `fixed_ranks` cannot have those ranks.
        """
        from mmjax.planning.problem import make_problem, workload_statistics

        count = self.devices or devices or self.cluster.devices_per_node
        statistics = workload_statistics(self.config)
        problem = make_problem(self.config, statistics, self.cluster, count, self.profile, fixed_ranks)
        return dataclasses.replace(problem, name=self.name)


def read_problem(arguments: ProblemArguments) -> ProblemInputs:
    """Reads what a command line says of a planning problem; raises UserError for an unknown cluster, file or part."""
    config, data = _configuration(arguments)
    from configs.clusters import find_cluster
    from mmjax.planning.problem import with_global_batch

    cluster = find_cluster(arguments.cluster)
    profile = _profile(arguments, cluster) if arguments.profile else None
    if arguments.batch_rows:
        config = with_global_batch(config, arguments.batch_rows)
    files = (pathlib.Path(path).stem for path in arguments.gin_file or (DEFAULT_GIN_FILE,))
    name = " with ".join(files) + (f" on {data}" if data else "")
    return ProblemInputs(config, cluster, arguments.devices, profile, name)


def _profile(arguments: ProblemArguments, cluster: "ClusterConfig") -> "Profile":
    """The profile; if it does not know the peak of its devices, it gets the cluster's."""
    from configs.clusters import cluster_of_device_kind
    from sharding.costs.profiled import Profile

    profile = Profile.load(arguments.profile)
    if not arguments.allow_other_device and cluster_of_device_kind(profile.device_kind) is not cluster:
        profile.check_device(cluster.device_kinds[0])
    return dataclasses.replace(profile, peak_flops=profile.peak_flops or cluster.peak_flops)


def _configuration(arguments: ProblemArguments) -> tuple[Any, str]:
    """The training run or workload that the configuration binds, and the name of its data unless a gin file says it.

    A model becomes a workload with described data.
    """
    files = arguments.gin_file or (DEFAULT_GIN_FILE,)
    cli.parse_gin(files, arguments.gin)
    from configs import architectures, workloads

    if cli.is_bound("TrainConfig.dataset"):
        from mmjax.training.config import TrainConfig

        config = cli.configured(TrainConfig)
        return config, getattr(config.dataset, "__name__", "")
    if cli.is_bound("Workload.model"):
        return cli.configured(workloads.Workload), ""
    from mmjax.planning.problem import default_data_file

    model, name = cli.configured(architectures.ModelConfig), ""
    if not cli.is_bound("SyntheticData.kinds"):
        name = arguments.data or default_data_file(model)
        cli.parse_gin((f"data/{name}.gin", *files), arguments.gin)
        model = cli.configured(architectures.ModelConfig)
    data = cli.configured(workloads.SyntheticData)
    return workloads.Workload(model, data, arguments.batch_rows or MODEL_ROWS, arguments.trainable), name
