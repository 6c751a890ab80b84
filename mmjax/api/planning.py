"""`mmjax.plan` and `mmjax.simulate`: plans and simulated steps, for programs and notebooks."""

import dataclasses
import functools
import os
from collections.abc import Collection

from configs.clusters import ClusterConfig
from configs.common.errors import UserError
from configs.cost_effects import EffectName
from configs.workloads import Workload
from mmjax.planning.arguments import ProblemArguments
from mmjax.planning.cluster_files import DEFAULT_CLUSTER, read_cluster
from mmjax.planning.problem import with_global_batch
from mmjax.planning.problem_inputs import ProblemInputs, check_rows, checked_grouping, read_problem
from mmjax.planning.result_progress import ResultProgress
from mmjax.planning.samples.sample_plans import plan_samples
from mmjax.training.config import TrainConfig
from mmjax.training.metrics.activity import COMPARING, SIMULATING, display_call
from sharding.planners.infeasible import check_gathered_layers
from sharding.planners.policies.auto import AUTO
from sharding.planners.policies.policy_comparison import PolicyComparison, compare_policies
from sharding.planners.problem import HopTiming, PlanningProblem
from sharding.plans.plan import Plan, as_plan
from sharding.plans.plan_purpose import NamedConfiguration, PlanPurpose
from sharding.plans.resolved.resolved_plan import resolve_plan
from sharding.plans.unit_checks import check_positions
from sharding.simulation.timeline import Timeline

Path = str | os.PathLike[str]
Subject = Path | TrainConfig | Workload
"""Subject of planning: a gin file of a model, a workload or a training run; or a configuration."""


def plan(
    subject: Subject,
    cluster: str = DEFAULT_CLUSTER,
    devices: int | None = None,
    policy: str = AUTO,
    rows: int | None = None,
    hops: HopTiming = "auto",
    without: Collection[EffectName] = (),
    samples: int | None = None,
    grouping: str = "",
) -> PolicyComparison:
    """Plans a model on a cluster, which need not be at hand.

        comparison = mmjax.plan("models/mllm_72b.gin", cluster="a800", devices=1296)
        comparison.plan.save("plan.json")
        comparison.timeline

    After two seconds it shows its progress on standard error.

    Args:
        subject: The subject. A model of a gin file is planned on described data that suits it (configs/data).
        cluster: Name of a cluster (configs/clusters.py), or a gin file that describes one (configs/hardware).
        devices: Number of its devices; by default the devices of one node.
        policy: Name of a planning policy; `auto` compares all and chooses the best.
        rows: Rows of the global batch; by default the configuration's, and 1,920 for a model.
        hops: What hops occupy: `asynchronous` none, `rendezvous` the devices at both ends, as between processes;
            `auto` the latter where there are more devices than a node has.
        without: Effects to leave out of analytic costs (`configs.cost_effects`), such as `jitter`.
        samples: Samples of a step, instead of rows: they are grouped into as many rows as hold them, or about as many,
            which more devices divide.
        grouping: Policy that groups samples into rows (`DataConfig.grouping`), or `auto` to choose the best of
            several; by default, with `samples`, a training run's own, and `auto` for described data.

    Returns:
        The comparison; with `samples` or `grouping` a `SampleComparison`, which has the groupings too.

    Raises:
        UserError: There is no such file, cluster, policy or grouping, or both `rows` and `samples` are given.
        PlanError: No policy has a plan that fits.
    """
    inputs = _inputs(subject, cluster, devices, rows, without=without, samples=samples, grouping=grouping)
    inputs = dataclasses.replace(inputs, hops=hops)
    with display_call() as display:

        def compare(problem: PlanningProblem) -> PolicyComparison:
            progress = ResultProgress(functools.partial(display.show, COMPARING), policy)
            comparison = compare_policies(problem, policy, progress.add)
            progress.finish()
            return comparison

        return plan_samples(inputs, compare) if inputs.grouping else compare(inputs.problem())


def simulate(
    plan: Plan | Path,
    subject: Subject | None = None,
    cluster: str = "",
    rows: int | None = None,
    hops: HopTiming | None = None,
    without: Collection[EffectName] | None = None,
) -> Timeline:
    """Simulates a step of a plan.

    Args:
        plan: A plan, or a plan file.
        subject, cluster, rows, hops, without: As in `plan`; by default the values for which the plan was made.

    Raises:
        UserError: No subject is given, and the plan was made for none that mmjax has.
        PlanError: The plan does not hold the model, or gathers a layer larger than a device's memory.
    """
    laid_out, _, problem = problem_of_plan("mmjax.simulate", plan, subject, cluster, rows, hops, without)
    check_gathered_layers(problem, laid_out)
    with display_call() as display:
        display.show(SIMULATING, 0, 1)
        return problem.simulate(laid_out)


def problem_of_plan(
    function: str,
    plan: Plan | Path,
    subject: Subject | None,
    cluster: str = "",
    rows: int | None = None,
    hops: HopTiming | None = None,
    without: Collection[EffectName] | None = None,
) -> tuple[Plan, ProblemInputs, PlanningProblem]:
    """A plan, checked, with the inputs and the problem of its step.

    Args:
        function: Name of the function that a message is about.
        plan: A plan, or a plan file.
        subject, cluster, rows, hops, without: As in `plan`; by default the values for which the plan was made.

    Raises:
        UserError: No subject is given, and the plan was made for none that mmjax has.
        PlanError: The plan does not hold the model.
    """
    laid_out = as_plan(plan)
    made_for = laid_out.made_for or PlanPurpose()
    if subject is None and not made_for.configuration.gin_file:
        raise UserError(f"{function} needs a subject: the plan does not name the configuration it was made for")
    devices = laid_out.devices_needed
    left_out = made_for.without if without is None else without
    inputs = _inputs(subject, cluster, devices, rows, made_for, left_out)
    inputs = dataclasses.replace(inputs, hops=hops or made_for.hops or "auto")
    problem = inputs.problem()
    resolve_plan(laid_out, problem.graph, problem.devices)
    check_positions(laid_out.units, problem.graph, problem.row_positions)
    return laid_out, inputs, problem


def _inputs(
    subject: Subject | None,
    cluster: str,
    devices: int | None,
    rows: int | None,
    made_for: PlanPurpose | None = None,
    without: Collection[EffectName] = (),
    samples: int | None = None,
    grouping: str = "",
) -> ProblemInputs:
    """Returns the inputs of the planning problem of a subject, or of what a plan was made for."""
    is_configuration = isinstance(subject, TrainConfig | Workload)
    files = () if subject is None or is_configuration else (os.fspath(subject),)
    arguments = ProblemArguments(
        gin_file=files,
        cluster=cluster,
        devices=devices,
        batch_rows=rows,
        batch_samples=samples,
        grouping=grouping,
        without=tuple(without),
    )
    if not is_configuration:
        return read_problem(arguments, made_for)
    check_rows(arguments)
    config = with_global_batch(subject, rows) if rows else subject
    return ProblemInputs(
        config=config,
        cluster=_cluster(cluster, made_for or PlanPurpose()),
        devices=devices,
        profile=None,
        configuration=NamedConfiguration(trainable=config.trainable),
        hops="auto",
        without=tuple(without),
        from_plan="",
        samples=samples,
        grouping=checked_grouping(arguments, config),
    )


def _cluster(cluster: str, made_for: PlanPurpose) -> ClusterConfig:
    """Returns the cluster of a name or a gin file; without either, the cluster that a plan was made for."""
    if not cluster and made_for.described_cluster:
        return made_for.described_cluster
    return read_cluster(cluster or made_for.cluster or DEFAULT_CLUSTER)
