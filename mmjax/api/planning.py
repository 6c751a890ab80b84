"""Plans and simulated steps, for programs and notebooks."""

import os

from configs.clusters import find_cluster
from configs.workloads import Workload
from mmjax.planning.arguments import ProblemArguments, read_problem
from mmjax.planning.problem import make_problem, with_global_batch, workload_statistics
from mmjax.training.config import TrainConfig
from sharding.planners.policy_comparison import AUTO, PolicyComparison, compare_policies
from sharding.planners.problem import PlanningProblem
from sharding.plans.plan import Plan, check_layout
from sharding.simulation.timeline import Timeline

Path = str | os.PathLike[str]
Subject = Path | TrainConfig | Workload
"""What is planned: a gin file of a model, a workload or a training run; or a configuration."""


def plan(
    subject: Subject,
    cluster: str = "a800",
    devices: int | None = None,
    policy: str = AUTO,
    rows: int | None = None,
) -> PolicyComparison:
    """Plans a model on a cluster, which need not be at hand.

        comparison = mmjax.plan("models/mllm_72b.gin", cluster="a800", devices=1296)
        comparison.plan.save("plan.json")
        comparison.timeline

    Args:
        subject: What is planned. A model of a gin file is planned on described data that suits it (configs/data).
        cluster: Name of a cluster (configs/clusters.py).
        devices: How many of its devices; by default those of one node.
        policy: Name of a planning policy; `auto` compares all and chooses the best.
        rows: Rows of the global batch; by default the configuration's, and 1,920 for a model.

    Raises:
        UserError: There is no such file, cluster or policy.
        PlanError: No policy has a plan that fits.
    """
    return compare_policies(_problem(subject, cluster, devices, rows), policy)


def simulate(
    plan: Plan | Path,
    subject: Subject,
    cluster: str = "a800",
    rows: int | None = None,
    rendezvous: bool = False,
) -> Timeline:
    """Simulates a step of a plan.

    Args:
        plan: A plan, or a plan file.
        subject, cluster, rows: As of `plan`; it needs the devices that the plan names.
        rendezvous: Whether hops occupy the devices at both ends, as ppermute programs do.

    Raises:
        PlanError: The plan does not hold the model.
    """
    laid_out = plan if isinstance(plan, Plan) else Plan.load(os.fspath(plan))
    devices = 1 + max(device for unit in laid_out.units for device in unit.devices)
    problem = _problem(subject, cluster, devices, rows)
    check_layout(laid_out, problem.graph, problem.devices)
    return problem.simulate(laid_out, rendezvous)


def _problem(subject: Subject, cluster: str, devices: int | None, rows: int | None) -> PlanningProblem:
    if isinstance(subject, TrainConfig | Workload):
        config = with_global_batch(subject, rows) if rows else subject
        found = find_cluster(cluster)
        return make_problem(config, workload_statistics(config), found, devices or found.devices_per_node)
    arguments = ProblemArguments(gin_file=(os.fspath(subject),), cluster=cluster, devices=devices, batch_rows=rows)
    return read_problem(arguments).problem()
