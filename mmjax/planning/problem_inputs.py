"""The planning problem that flags describe: its configuration, cluster and profile, read and checked.

`mmjax.plan`, `mmjax.simulate` and the Python interface read their problems by it.
"""

import dataclasses
import functools
import pathlib
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from configs.common.secret_values import masked_configuration
from mmjax import cli
from mmjax.planning.arguments import MODEL_ROWS, ProblemArguments
from mmjax.planning.cluster_files import cluster_file, configured_cluster
from mmjax.planning.plan_flags import (
    CONFIGURATION_FLAGS,
    DESCRIBED_DATA,
    MODEL_FLAGS,
    ROW_FLAGS,
    flags_from_plan,
    taken_flags,
)

if TYPE_CHECKING:
    from configs.clusters import ClusterConfig
    from configs.cost_effects import EffectName
    from configs.workloads import Workload
    from mmjax.planning.samples.sample_rows import SampleRows
    from mmjax.planning.samples.sources import GroupedSamples
    from sharding.costs.profiled import Profile
    from sharding.planners.problem import HopTiming, PlanningProblem
    from sharding.planners.tables.fixed_ranks import FixedRanks
    from sharding.plans.plan import Plan
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
        samples: Samples of a step, from which the number of rows follows; None for the rows of `config`.
        grouping: Policy that groups samples into rows, or `auto`; empty where rows are drawn at random instead.
    """

    config: Any
    cluster: "ClusterConfig"
    devices: int | None
    profile: "Profile | None"
    configuration: "NamedConfiguration"
    hops: "HopTiming"
    without: "tuple[EffectName, ...]"
    from_plan: str
    samples: int | None = None
    grouping: str = ""

    def problem(
        self,
        devices: int | None = None,
        fixed_ranks: "Mapping[str, FixedRanks] | None" = None,
        rows: "SampleRows | None" = None,
    ) -> "PlanningProblem":
        """Makes the planning problem, for which rows are drawn from the data.

        Args:
            devices: Number of devices if neither the flags nor the plan give it; None for the devices of a node.
            fixed_ranks: Context-parallel and expert ranks by module.
            rows: Rows that samples were grouped into; by default those of `grouping`, or rows drawn at random.

        Raises:
            PlanError: A module of `fixed_ranks` cannot have those ranks.
        """
        from mmjax.planning.problem import make_problem, with_global_batch, workload_statistics

        count, config, configuration = self.device_count(devices), self.config, self.configuration
        if rows is None and self.grouping:
            rows = self.sample_rows(self.grouping, devices)
        if rows is not None:
            config = with_global_batch(config, rows.rows, rows.grouping)
            configuration = dataclasses.replace(configuration, grouping=rows.grouping)
        statistics = rows.statistics if rows else workload_statistics(config)
        problem = make_problem(config, statistics, self.cluster, count, self.profile, fixed_ranks, self.without)
        return dataclasses.replace(problem, configuration=configuration, hops=self.hops)

    def device_count(self, devices: int | None = None) -> int:
        """Number of devices; `devices`, or those of a node, if neither the flags nor the plan give it."""
        return self.devices or devices or self.cluster.devices_per_node

    def sample_rows(self, grouping: str, devices: int | None = None) -> "SampleRows":
        """The rows that a grouping makes of the samples of a step on so many devices.

        Raises:
            UserError: `auto` is no grouping.
            DataError: As of `data.packing.pipeline.training_batches`.
        """
        from mmjax.planning.problem import global_batch_rows
        from mmjax.planning.samples.sources import AUTO_GROUPING

        if grouping == AUTO_GROUPING:
            raise cli.UserError(
                f"--grouping={AUTO_GROUPING} compares groupings, which mmjax.plan does; here name one of "
                f"{', '.join(self.sample_source.groupings)}"
            )
        if self.samples:
            return self.sample_source.rows_for(grouping, self.samples, self.device_count(devices))
        return self.sample_source.rows_of_step(grouping, global_batch_rows(self.config))

    @functools.cached_property
    def sample_source(self) -> "GroupedSamples":
        """The samples, to be grouped into rows."""
        from mmjax.planning.problem import grouped_samples

        return grouped_samples(self.config)


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
    check_rows(given)
    names = CONFIGURATION_FLAGS if given.gin_file else (*CONFIGURATION_FLAGS, *ROW_FLAGS)
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
        samples=arguments.batch_samples,
        grouping=checked_grouping(arguments, config),
    )


def print_purpose(path: str, plan: "Plan", inputs: ProblemInputs, problem: "PlanningProblem") -> None:
    """Prints to standard error the flags taken from a plan, and where the problem differs from the plan's.

    Args:
        path: The plan file.
        plan: The plan.
        inputs: The inputs that were read with it.
        problem: Their problem.
    """
    from sharding.plans.plan_purpose import differences

    name = pathlib.Path(path).name
    if inputs.from_plan:
        print(f"from {name}: {inputs.from_plan}", file=sys.stderr)
    if plan.made_for and (other := differences(plan.made_for, problem.purpose)):
        print(f"note: {name} was made for {', '.join(other)}", file=sys.stderr)


def check_rows(arguments: ProblemArguments) -> None:
    """Raises UserError if both the samples and the rows of a step are given."""
    if arguments.batch_samples and arguments.batch_rows:
        raise cli.UserError(
            f"--batch_samples={arguments.batch_samples} and --batch_rows={arguments.batch_rows}: the rows of a step "
            "follow from its samples; leave one of them out"
        )


def checked_grouping(arguments: ProblemArguments, config: Any) -> str:
    """Returns the grouping of samples that flags name, or the default with `--batch_samples`; empty without both.

    Raises:
        UserError: There is no such grouping of the configuration's samples.
    """
    if not arguments.grouping and not arguments.batch_samples:
        return ""
    from mmjax.planning.problem import grouped_samples
    from mmjax.planning.samples.sources import AUTO_GROUPING

    samples = grouped_samples(config)
    known, name = (AUTO_GROUPING, *samples.groupings), arguments.grouping or samples.default_grouping
    if name not in known:
        raise cli.UserError(f"--grouping={name} is not one of {', '.join(known)}{cli.nearest(name, known)}")
    return name


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
    from configs import architectures, optimizer, workloads

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
    if cli.is_bound("OptimizerConfig.algorithm") or cli.is_bound("OptimizerConfig.state_memory"):
        return workloads.Workload(model, data, rows, trainable, cli.configured(optimizer.OptimizerConfig)), name
    return workloads.Workload(model, data, rows, trainable), name
