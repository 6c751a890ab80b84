"""`PLAN = "auto"`: a training run measures its layers, plans by them, and tells what a step should take."""

import dataclasses
import pathlib
import statistics

import jax
import numpy as np

from configs.clusters import CLUSTERS, ClusterConfig, cluster_of_device_kind
from configs.errors import UserError
from data.packing.global_batch import GlobalBatch
from mmjax.planning.problem import make_problem
from mmjax.training.config import TrainConfig, load_configured_plan
from mmjax.training.metrics.writers import read_metrics
from mmjax.training.profiling.layer_profile import MICROBATCHES, profile_model
from mmjax.training.row_loads import capacity_row_loads, first_batches
from sharding.costs.profiled import Profile
from sharding.planners import auto
from sharding.planners.problem import TENSOR_SIZES, PlanningProblem
from sharding.plans.plan import Plan
from sharding.specs.modules import module_graph
from sharding.specs.row_load_statistics import RowLoadStatistics

AUTO = "auto"
PROFILE = "profile.json"
STEP_SECONDS = "seconds/wall"
ROWS = (1, 4)
STEPS = 6


@dataclasses.dataclass(frozen=True)
class PredictedStep:
    """What a step should take, by a profile.

    Attributes:
        step_seconds: Of the step, if every device computes beside the others.
        work_seconds: Of all ops one after another: what a host shows whose devices share its cores.
    """

    step_seconds: float
    work_seconds: float


def measure_profile(config: TrainConfig, batch: GlobalBatch) -> Profile:
    """Times the layers at every tensor size that divides a module, and at two numbers of rows."""
    graph, devices = module_graph(config.model), jax.local_device_count()
    tps = [tp for tp in TENSOR_SIZES if tp <= devices and any(module.supports_tp(tp) for module in graph.modules)]
    rows = [count for count in ROWS if count * MICROBATCHES <= config.data.rows]
    if not rows:
        raise UserError(f"plan = 'auto' measures {MICROBATCHES} rows at least; DataConfig.rows is {config.data.rows}")
    return profile_model(config.model, batch.arrays, config.engine_settings, tps, rows, "none", STEPS)


def problem_from_profile(config: TrainConfig, measured: Profile, batch: GlobalBatch, devices: int) -> PlanningProblem:
    """The run as a planner's problem; rows are as long as their static shapes, because programs compute all of it."""
    statistics = RowLoadStatistics(capacity_row_loads(batch.arrays, module_graph(config.model)))
    problem = make_problem(config, statistics, _cluster(measured.device_kind), devices, measured)
    return dataclasses.replace(problem, chunk_choices=(1,))


def plan_automatically(problem: PlanningProblem) -> tuple[Plan, str]:
    """The best plan that the trainer takes, and a remark for people; raises PlanError where there is none."""
    best = auto.plan_automatically(problem)
    return best.plan, f"planned by {best.policy}, from this machine's profile"


def predict_step(problem: PlanningProblem, plan: Plan) -> PredictedStep:
    """A plan's step, simulated."""
    timeline = problem.simulate(plan)
    work = sum(float(np.max(span.seconds)) for span in timeline.spans)
    return PredictedStep(float(timeline.step), work)


def _cluster(device_kind: str) -> ClusterConfig:
    """The cluster whose devices these are; of another kind, the host's own memory bounds nothing."""
    known = cluster_of_device_kind(device_kind)
    if known:
        return known
    limits = jax.devices()[0].memory_stats() or {}
    memory = float(limits.get("bytes_limit", CLUSTERS["cpu"].memory))
    return dataclasses.replace(CLUSTERS["cpu"], name=device_kind, memory=memory)


def plan_and_predict(
    config: TrainConfig, workdir: pathlib.Path, profile_path: str, any_device: bool
) -> tuple[Plan, str, PredictedStep | None]:
    """The plan to run, a remark for people, and what a step should take where a profile tells.

    Args:
        config: The run; its plan is a file, none, or `auto`.
        workdir: Where `auto` writes what it measures, and a resumed run finds it.
        profile_path: A profile to use instead of measuring; empty for none.
        any_device: Whether the profile may be of other hardware.
    """
    planned = "" if config.plan == AUTO else load_configured_plan(config, jax.device_count())
    if planned and not profile_path:
        return *planned, None
    (batch,) = first_batches(config, 1)
    measured = _profile(config, batch, workdir / PROFILE, profile_path, any_device)
    problem = problem_from_profile(config, measured, batch, jax.device_count())
    plan, remark = planned or plan_automatically(problem)
    return plan, remark, predict_step(problem, plan)


def _profile(config: TrainConfig, batch: GlobalBatch, kept: pathlib.Path, given: str, any_device: bool) -> Profile:
    path = given or (str(kept) if kept.is_file() else "")
    if path:
        found = Profile.load(path)
        if not any_device:
            found.check_device(jax.devices()[0].device_kind)
        return found
    if jax.process_count() > 1:
        raise UserError("plan = 'auto' measures in one process: run python -m mmjax.profile first and pass --profile")
    found = measure_profile(config, batch)
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(found.to_json(), encoding="utf-8")
    return found


def compare_prediction(prediction: PredictedStep | None, workdir: pathlib.Path) -> dict[str, float] | None:
    """The prediction beside the median of the measured steps, those that compile left out; for the summary."""
    if prediction is None:
        return None
    seconds = [line[STEP_SECONDS] for line in read_metrics(str(workdir)) if STEP_SECONDS in line][1:]
    measured = {"measured_step_seconds": round(statistics.median(seconds), 4)} if seconds else {}
    return {name: round(value, 4) for name, value in dataclasses.asdict(prediction).items()} | measured
