"""The simulated step of a run for its page: by the workdir's profile, else by the cluster's analytic costs."""

import dataclasses

from configs.common.errors import UserError
from data.packing.batch_spec import global_batch_spec
from mmjax.planning.problem import make_problem
from mmjax.reporting.run_folder import Run
from mmjax.training.config import TrainConfig
from mmjax.training.row_loads import capacity_row_loads
from sharding.costs.profiled import Profile
from sharding.planners.problem import HopTiming
from sharding.plans.plan_purpose import PlanPurpose, cluster_of_run, hops_of_processes
from sharding.plans.resolved.resolved_plan import resolve_plan
from sharding.simulation.timeline import Timeline
from sharding.specs.modules import module_graph
from sharding.specs.row_load_statistics import RowLoadStatistics

PROFILE_FILE = "profile.json"


@dataclasses.dataclass(frozen=True)
class PredictedTimeline:
    """A simulated step, and in words the source of its costs."""

    timeline: Timeline
    costs: str


def predict_timeline(run: Run, config: TrainConfig) -> PredictedTimeline:
    """Simulates a step of a run's plan; rows have their full capacity, because programs compute all of it.

    Hops occupy what they occupy between the run's processes. Effects that the plan was made without are left out.

    Raises:
        UserError: The run has no plan, its plan does not fit its model, or nothing is known about its devices.
    """
    if run.plan is None:
        raise UserError("the workdir has no plan.json")
    graph = module_graph(config.model)
    resolve_plan(run.plan, graph, run.plan.device_count, config.data.rows)
    loads = RowLoadStatistics(capacity_row_loads(global_batch_spec(config.data, config.model).arrays, graph))
    path = run.workdir / PROFILE_FILE
    profile = Profile.load(path) if path.is_file() else None
    kind = profile.device_kind if profile else _device_kind(run)
    made_for = run.plan.made_for or PlanPurpose()
    cluster = cluster_of_run(made_for, kind)
    if cluster is None:
        raise UserError(f"configs/clusters.py has no cluster of {kind or 'unknown'} devices, by which to cost a step")
    without = () if profile else made_for.without
    problem = make_problem(config, loads, cluster, run.plan.device_count, profile, without=without)
    problem = dataclasses.replace(problem, hops=_hops(run, made_for))
    costs = (
        f"layers measured on this machine ({PROFILE_FILE})"
        if profile
        else f"the analytic costs of the cluster {cluster.name}" + (f" without {', '.join(without)}" if without else "")
    )
    return PredictedTimeline(problem.simulate(run.plan), costs)


def _hops(run: Run, made_for: PlanPurpose) -> HopTiming:
    """What the run's hops occupy: by its processes, and if these are not recorded, what its plan was made for."""
    return hops_of_processes(run.starts[-1]["processes"]) if run.starts else made_for.hops or "auto"


def _device_kind(run: Run) -> str:
    """The kind of the run's devices, from words such as `8 x cpu`."""
    described = run.starts[-1]["devices"] if run.starts else run.summary.get("devices", "")
    return described.partition(" x ")[2]
