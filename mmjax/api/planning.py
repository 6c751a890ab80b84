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
from mmjax.planning.problem import make_problem, with_global_batch, workload_statistics
from mmjax.planning.problem_inputs import read_problem
from mmjax.planning.result_progress import ResultProgress
from mmjax.training.config import TrainConfig
from mmjax.training.metrics.activity import COMPARING, SIMULATING, display_call
from sharding.planners.infeasible import check_gathered_layers
from sharding.planners.policies.policy_comparison import AUTO, PolicyComparison, compare_policies
from sharding.planners.problem import HopTiming, PlanningProblem
from sharding.plans.plan import Plan, as_plan
from sharding.plans.plan_purpose import PlanPurpose
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

    Raises:
        UserError: There is no such file, cluster or policy.
        PlanError: No policy has a plan that fits.
    """
    problem = dataclasses.replace(_problem(subject, cluster, devices, rows, without=without), hops=hops)
    with display_call() as display:
        progress = ResultProgress(functools.partial(display.show, COMPARING), policy)
        comparison = compare_policies(problem, policy, progress.add)
        progress.finish()
        return comparison


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
    laid_out = as_plan(plan)
    made_for = laid_out.made_for or PlanPurpose()
    if subject is None and not made_for.configuration.gin_file:
        raise UserError("mmjax.simulate needs a subject: the plan does not name the configuration it was made for")
    devices = 1 + max(device for unit in laid_out.units for device in unit.devices)
    left_out = made_for.without if without is None else without
    problem = _problem(subject, cluster, devices, rows, made_for, left_out)
    problem = dataclasses.replace(problem, hops=hops or made_for.hops or "auto")
    resolve_plan(laid_out, problem.graph, problem.devices)
    check_positions(laid_out.units, problem.row_positions)
    check_gathered_layers(problem, laid_out)
    with display_call() as display:
        display.show(SIMULATING, 0, 1)
        return problem.simulate(laid_out)


def _problem(
    subject: Subject | None,
    cluster: str,
    devices: int | None,
    rows: int | None,
    made_for: PlanPurpose | None = None,
    without: Collection[EffectName] = (),
) -> PlanningProblem:
    """Returns the planning problem of a subject, or of what a plan was made for."""
    if isinstance(subject, TrainConfig | Workload):
        config = with_global_batch(subject, rows) if rows else subject
        cluster_config = _cluster(cluster, made_for or PlanPurpose())
        count = devices or cluster_config.devices_per_node
        return make_problem(config, workload_statistics(config), cluster_config, count, without=without)
    files = () if subject is None else (os.fspath(subject),)
    arguments = ProblemArguments(
        gin_file=files, cluster=cluster, devices=devices, batch_rows=rows, without=tuple(without)
    )
    return read_problem(arguments, made_for).problem()


def _cluster(cluster: str, made_for: PlanPurpose) -> ClusterConfig:
    """Returns the cluster of a name or a gin file; without either, the cluster that a plan was made for."""
    if not cluster and made_for.described_cluster:
        return made_for.described_cluster
    return read_cluster(cluster or made_for.cluster or DEFAULT_CLUSTER)
