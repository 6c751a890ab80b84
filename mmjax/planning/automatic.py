"""`plan = "auto"`: a training run measures its layers, plans by the measured times, and predicts its step.

`mmjax.train` and `mmjax.Trainer` call `plan_and_predict` before a run.
"""

import dataclasses
import functools
import pathlib
import statistics
from collections.abc import Callable

import jax
import numpy as np

from configs.clusters import CLUSTERS, ClusterConfig, cluster_of_device_kind
from configs.common.errors import UserError
from configs.common.whole_files import write_whole
from data.packing.batch_spec import global_batch_spec
from data.packing.global_batch import GlobalBatch
from mmjax.planning.problem import make_problem
from mmjax.planning.result_progress import ResultProgress, ShowCounts
from mmjax.training.config import TrainConfig, load_configured_plan
from mmjax.training.metrics.activity import COMPARING, MEASURING, display_call
from mmjax.training.metrics.metrics_file import read_metrics
from mmjax.training.profiling.layer_profile import MICROBATCHES, profile_model
from mmjax.training.row_loads import capacity_row_loads, first_batches
from sharding.costs.profiled import Profile, TimedRanks
from sharding.planners.policies import auto
from sharding.planners.problem import TENSOR_SIZES, PlanningProblem
from sharding.plans.plan import Plan
from sharding.plans.plan_purpose import (
    NamedConfiguration,
    PlanPurpose,
    differences,
    hops_of_processes,
    module_sizes,
)
from sharding.runtime.coordination import exchange_texts
from sharding.specs.modules import module_graph
from sharding.specs.row_load_statistics import RowLoadStatistics

AUTO = "auto"
PROFILE_FILE = "profile.json"
STEP_SECONDS = "seconds/wall"
PROFILED_ROWS = (1, 4)
PROFILED_STEPS = 6


@dataclasses.dataclass(frozen=True)
class PredictedStep:
    """Predicted seconds of a step.

    Attributes:
        step_seconds: The simulated step, where all devices compute at the same time.
        work_seconds: All ops one after another, as on a host whose devices share its cores.
        profile: The measured times by which it is predicted.
    """

    step_seconds: float
    work_seconds: float
    profile: Profile


def measure_profile(
    config: TrainConfig, batch: GlobalBatch, callback: Callable[[int, int], None] = lambda done, total: None
) -> Profile:
    """Times the layers at every tensor-parallel size that divides a module, and at two numbers of rows; without cp."""
    graph, devices = module_graph(config.model), jax.local_device_count()
    ranks = [
        TimedRanks(tp)
        for tp in TENSOR_SIZES
        if tp <= devices and any(module.supports_tp(tp) for module in graph.modules)
    ]
    rows = [count for count in PROFILED_ROWS if count * MICROBATCHES <= config.data.rows]
    if not rows:
        raise UserError(f"plan = 'auto' measures {MICROBATCHES} rows at least; DataConfig.rows is {config.data.rows}")
    settings = config.engine_settings
    return profile_model(config.model, batch.arrays, settings, ranks, rows, "none", PROFILED_STEPS, callback)


def problem_from_profile(config: TrainConfig, profile: Profile, devices: int) -> PlanningProblem:
    """Makes the planning problem of a run with a profile's costs; rows are full, because programs compute all of it."""
    batch_spec = global_batch_spec(config.data, config.model)
    loads = RowLoadStatistics(capacity_row_loads(batch_spec.arrays, module_graph(config.model)))
    problem = make_problem(config, loads, cluster_of_devices(profile.device_kind), devices, profile)
    return dataclasses.replace(problem, chunk_choices=(1,), hops=hops_of_processes(jax.process_count()))


def plan_automatically(
    problem: PlanningProblem, show: ShowCounts = lambda done, total, remark: None
) -> tuple[Plan, str]:
    """Returns the best plan that can be trained, and a remark for the user; raises PlanError if there is none."""
    progress = ResultProgress(show, AUTO)
    best = auto.plan_automatically(problem, progress.add)
    progress.finish()
    return best.plan, f"planned by {best.policy}, from this machine's profile"


def predict_step(problem: PlanningProblem, plan: Plan, profile: Profile) -> PredictedStep:
    """Simulates a step of a plan of a problem with a profile's costs."""
    timeline = problem.simulate(plan)
    work = sum(float(np.max(span.own_seconds)) for span in timeline.spans)
    return PredictedStep(float(timeline.step), work, profile)


def cluster_of_devices(device_kind: str) -> ClusterConfig:
    """Returns the cluster of a kind of device, with the memory that the process's allocator has.

    For an unknown kind it is a host of such devices.
    """
    cluster = cluster_of_device_kind(device_kind)
    limit = _memory_limit()
    if cluster:
        if not limit or not cluster.has_device_kind(jax.devices()[0].device_kind):
            return cluster
        return dataclasses.replace(cluster, allocator_share=min(1.0, limit / cluster.memory))
    memory = float(limit or CLUSTERS["cpu"].memory)
    return dataclasses.replace(CLUSTERS["cpu"], name=device_kind, memory=memory, device_kinds=(device_kind,))


def _memory_limit() -> int:
    """Bytes of a device's memory that the allocator has in every process, so that all plan alike; 0 if it says none."""
    own = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit", 0)
    return min(map(int, exchange_texts("planning for the devices' memory", str(own)).values()))


def remark_on_devices(cluster: ClusterConfig) -> str:
    """Says what a cluster assumes of this process's devices if mmjax does not know their kind; else empty."""
    kind = jax.devices()[0].device_kind
    if cluster_of_device_kind(kind) or cluster != cluster_of_devices(kind):
        return ""
    return (
        f"mmjax does not know {kind}: simulated steps assume devices with {cluster.memory / 1e9:.1f} GB of memory each "
        "and all other figures of the cluster cpu; describe them in a gin file for --cluster (docs/how_to/planning.md)"
    )


def plan_and_predict(
    config: TrainConfig, workdir: pathlib.Path, profile_path: str, any_device: bool
) -> tuple[Plan, str, PredictedStep | None]:
    """Returns the plan to run, a remark for the user, and the predicted step if there is a profile.

    Work that takes more than two seconds shows its progress on standard error.

    Args:
        config: The run; its plan is a file, none, or `auto`.
        workdir: Where `auto` writes its profile, and where a resumed run finds it.
        profile_path: A profile to use instead of measuring; empty for none.
        any_device: Whether the profile may be of other hardware.
    """
    configured = None
    if config.plan != AUTO:
        plan, remark = load_configured_plan(config, jax.device_count())
        configured = plan, remark or _remark_on_purpose(plan, config)
    if configured and not profile_path:
        return *configured, None
    with display_call(jax.process_index() == 0) as display:
        show = functools.partial(display.show, MEASURING)
        profile = _load_or_measure_profile(config, workdir / PROFILE_FILE, profile_path, any_device, show)
        problem = problem_from_profile(config, profile, jax.device_count())
        plan, remark = configured or plan_automatically(problem, functools.partial(display.show, COMPARING))
        return plan, remark, predict_step(problem, plan, profile)


def _remark_on_purpose(plan: Plan, config: TrainConfig) -> str:
    """Says where a run differs from its plan's recorded purpose; empty if it does not, or the plan records none."""
    cluster = cluster_of_device_kind(jax.devices()[0].device_kind)
    here = PlanPurpose(
        configuration=NamedConfiguration(
            data=getattr(config.dataset, "__name__", ""),
            trainable=config.trainable,
            grouping=config.data.grouping,
        ),
        model=module_sizes(module_graph(config.model)),
        rows=config.data.rows,
        cluster=cluster.name if cluster else "",
        hops=hops_of_processes(jax.process_count()) if sum(unit.stage_count for unit in plan.units) > 1 else None,
    )
    other = differences(plan.made_for or PlanPurpose(), here)
    return f"the plan was made for {', '.join(other)}" if other else ""


def _load_or_measure_profile(
    config: TrainConfig,
    workdir_profile: pathlib.Path,
    profile_path: str,
    any_device: bool,
    callback: Callable[[int, int], None],
) -> Profile:
    """Reads the profile at a path, else the profile in the workdir, else measures one and writes it there."""
    path = profile_path or (str(workdir_profile) if workdir_profile.is_file() else "")
    if path:
        profile = Profile.load(path)
        if not any_device:
            profile.check_device(jax.devices()[0].device_kind)
        return profile
    if jax.process_count() > 1:
        raise UserError("plan = 'auto' measures in one process: run python -m mmjax.profile first and pass --profile")
    (batch,) = first_batches(config, 1)
    profile = measure_profile(config, batch, callback)
    write_whole(workdir_profile, profile.to_json())
    return profile


def compare_prediction(prediction: PredictedStep | None, workdir: pathlib.Path) -> dict[str, float] | None:
    """Returns the prediction, and the median of the measured steps without the first window, where programs compile."""
    if prediction is None:
        return None
    seconds = [line[STEP_SECONDS] for line in read_metrics(str(workdir)) if STEP_SECONDS in line][1:]
    measured = {"measured_step_seconds": round(statistics.median(seconds), 4)} if seconds else {}
    predicted = {name: round(getattr(prediction, name), 4) for name in ("step_seconds", "work_seconds")}
    return predicted | measured
