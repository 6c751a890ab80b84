"""The planning problem that flags describe: its configuration, cluster and profile, read and checked.

`mmjax.plan`, `mmjax.simulate` and the Python interface read their problems by it.
"""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from configs.common.secret_values import masked_configuration
from mmjax import cli
from mmjax.planning.arguments import MODEL_ROWS, ProblemArguments
from mmjax.planning.cluster_files import cluster_file, configured_cluster
from mmjax.planning.plan_flags import CONFIGURATION_FLAGS, DESCRIBED_DATA, MODEL_FLAGS, flags_from_plan, taken_flags

if TYPE_CHECKING:
    from configs.clusters import ClusterConfig
    from configs.cost_effects import EffectName
    from configs.workloads import Workload
    from sharding.costs.profiled import Profile
    from sharding.planners.problem import HopTiming, PlanningProblem
    from sharding.planners.tables.fixed_ranks import FixedRanks
    from sharding.plans.plan_purpose import NamedConfiguration, PlanPurpose

DEFAULT_GIN_FILE = "models/mllm_72b.gin"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProblemInputs:
    """The checked inputs of a planning problem, as a command line gives them.

    Attributes:
        config: The training run or workload.
        cluster: The cluster.
        devices: Number of its devices; None if neither the flags nor the plan give it.
        profile: Measured times of layers, if there are some.
        configuration: Names and files from which `config` was read.
        hops: What hops occupy (`PlanningProblem.hops`).
        without: Effects to leave out of analytic costs.
        from_plan: The flags whose values were taken from the plan, as they would be written; empty for none.
    """

    config: Any
    cluster: "ClusterConfig"
    devices: int | None
    profile: "Profile | None"
    configuration: "NamedConfiguration"
    hops: "HopTiming"
    without: "tuple[EffectName, ...]"
    from_plan: str

    def problem(
        self, devices: int | None = None, fixed_ranks: "Mapping[str, FixedRanks] | None" = None
    ) -> "PlanningProblem":
        """Makes the planning problem, for which rows are drawn from the data.

        Args:
            devices: Number of devices if neither the flags nor the plan give it; None for the devices of a node.
            fixed_ranks: Context-parallel and expert ranks by module.

        Raises:
            PlanError: A module of `fixed_ranks` cannot have those ranks.
        """
        from mmjax.planning.problem import make_problem, workload_statistics

        count = self.devices or devices or self.cluster.devices_per_node
        statistics = workload_statistics(self.config)
        problem = make_problem(self.config, statistics, self.cluster, count, self.profile, fixed_ranks, self.without)
        return dataclasses.replace(problem, configuration=self.configuration, hops=self.hops)


def read_problem(
    given: ProblemArguments,
    made_for: "PlanPurpose | None" = None,
    default_cluster: "ClusterConfig | None" = None,
) -> ProblemInputs:
    """Reads and checks the inputs of a planning problem from a command line.

    Args:
        given: The command line.
        made_for: Recorded purpose of the plan, if there is one, which gives values that the command line leaves out.
        default_cluster: The cluster where neither the command line, the configuration nor the plan has one; None for
            `DEFAULT_CLUSTER`.

    Raises:
        UserError: An unknown cluster, file or trainable part.
    """
    names = CONFIGURATION_FLAGS if given.gin_file else (*CONFIGURATION_FLAGS, "batch_rows")
    arguments = flags_from_plan(given, made_for, names)
    plan_cluster = made_for.described_cluster if made_for and not given.cluster else None
    described = "" if plan_cluster else cluster_file(arguments.cluster)
    files = arguments.gin_file or (DEFAULT_GIN_FILE,)
    read_files = (*files, described) if described else files
    cli.parse_gin(read_files, arguments.gin)
    if cli.is_bound("TrainConfig.dataset"):
        from mmjax.training.config import TrainConfig

        config = cli.configured(TrainConfig)
        data = getattr(config.dataset, "__name__", "")
    else:
        arguments = flags_from_plan(arguments, made_for, MODEL_FLAGS)
        config, data = _workload(arguments, read_files)
    from mmjax.planning.problem import with_global_batch
    from sharding.plans.plan_purpose import NamedConfiguration

    cluster = plan_cluster or configured_cluster(arguments.cluster, described, default_cluster)
    if arguments.batch_rows:
        config = with_global_batch(config, arguments.batch_rows)
    bindings = "\n".join(" ".join(binding.split()) for binding in arguments.gin)
    return ProblemInputs(
        config=config,
        cluster=cluster,
        devices=arguments.devices,
        profile=_profile(arguments, cluster) if arguments.profile else None,
        configuration=NamedConfiguration(
            gin_file=files,
            gin=tuple(masked_configuration(bindings).splitlines()),
            data=data,
            trainable=config.trainable,
            profile=arguments.profile,
        ),
        hops=cast("HopTiming", arguments.hops or "auto"),
        without=arguments.without or (),
        from_plan=taken_flags(given, arguments),
    )


def _profile(arguments: ProblemArguments, cluster: "ClusterConfig") -> "Profile":
    """Reads the profile; a profile without the peak of its devices gets the cluster's peak."""
    from configs.clusters import cluster_of_device_kind
    from sharding.costs.profiled import Profile

    profile = Profile.load(arguments.profile)
    measured = cluster_of_device_kind(profile.device_kind)
    if not arguments.allow_other_device and (measured is None or measured.name != cluster.name):
        profile.check_device(cluster.device_kinds[0] if cluster.device_kinds else cluster.name)
    return dataclasses.replace(profile, peak_flops=profile.peak_flops or cluster.peak_flops)


def _workload(arguments: ProblemArguments, files: tuple[str, ...]) -> "tuple[Workload, str]":
    """Returns the workload that the configuration binds, and the name or file of its data unless a gin file names it.

    A model becomes a workload with described data.
    """
    from configs import architectures, workloads

    if cli.is_bound("Workload.model"):
        return cli.configured(workloads.Workload), ""
    from mmjax.planning.problem import default_data_file

    model, name = cli.configured(architectures.ModelConfig), ""
    if not cli.is_bound("SyntheticData.kinds"):
        file = cli.configuration_file(arguments.data or default_data_file(model), DESCRIBED_DATA)
        name = pathlib.Path(file).stem if cli.is_packaged(file) else file
        cli.parse_gin((file, *files), arguments.gin)
        model = cli.configured(architectures.ModelConfig)
    data = cli.configured(workloads.SyntheticData)
    rows, trainable = arguments.batch_rows or MODEL_ROWS, arguments.trainable or ("all",)
    return workloads.Workload(model, data, rows, trainable), name
