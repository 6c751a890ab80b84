"""The simulator: every op's start and end on every replica, from a schedule and the costs of a step."""

from collections.abc import Callable, Mapping

import numpy as np
from jaxtyping import Int

from sharding.costs.step_costs import StepCosts
from sharding.plans.device_groups import replica_devices
from sharding.plans.plan import Plan
from sharding.plans.stage_graph import StageEdge, StageId
from sharding.schedules.ops import OpGraph, OpKind, PipelineOp, Schedule, ScheduleError
from sharding.simulation.bundles import BundleClock, BundledOp, bundle_spans
from sharding.simulation.schedule_replay import OpClock, Seconds, replay_schedule
from sharding.simulation.spans import Span
from sharding.simulation.timeline import Timeline


def simulate(plan: Plan, schedule: Schedule, costs: StepCosts, rendezvous: bool = False) -> Timeline:
    """The timeline of one step.

    An op starts as soon as it can (`replay_schedule`); this is exact for the schedule and the costs given. A hop takes
    its seconds from the end of the op that produces its array; a share takes none. What a bundle takes is said at
    `bundle_spans`.

    Args:
        plan: Which devices hold which stages.
        schedule: A schedule that `check_schedule` accepts.
        costs: Seconds and bytes.
        rendezvous: Whether a hop occupies the devices of both its ends, as a ppermute program on the compute stream
            does. By default it occupies none (asynchronous sends, DistTrain, arXiv 2408.04275, section 7).
    """
    return simulate_on_devices(replica_devices(plan, schedule.op_graph.stage_graph.stages), schedule, costs, rendezvous)


def simulate_on_devices(
    devices: Mapping[StageId, Int[np.ndarray, "_ _"]],
    schedule: Schedule,
    costs: StepCosts,
    rendezvous: bool = False,
) -> Timeline:
    """`simulate` on stages whose devices are given as [copies * replicas, ranks of a replica]."""
    op_graph = schedule.op_graph
    _check_costs(devices, op_graph, costs)
    spans = replay_schedule(devices, schedule, _clock(costs), _bundle_clock(costs), rendezvous)
    return Timeline(op_graph, devices, costs, spans, rendezvous)


def _clock(costs: StepCosts) -> OpClock:
    """Ops start as soon as they can, and take the seconds of these costs."""

    def run(op: PipelineOp, start: Seconds) -> Span:
        seconds, communication = _DURATIONS[op.kind](costs, op)
        return Span(op, start, start + seconds, np.zeros_like(start) if communication is None else communication)

    return run


def _bundle_clock(costs: StepCosts) -> BundleClock:
    """Bundles start as soon as they can, and hide what they can of these costs (`bundle_spans`)."""

    def run(ops: tuple[BundledOp, BundledOp], start: Seconds) -> tuple[Span, Span]:
        seconds, communication = [], []
        for op, part in ops:
            of_op, waits = _DURATIONS[op.kind](costs, op)
            seconds.append(np.broadcast_to(of_op, part.shape))
            communication.append(seconds[-1] if waits is None else waits)  # a gather or a reduction only waits
        return bundle_spans(ops, start, seconds, communication)

    return run


_Duration = tuple[Seconds | float, Seconds | None]
"""Seconds of an op, and those among them in which its devices wait for other ranks of the unit; None for none."""


def _forward(costs: StepCosts, op: PipelineOp) -> _Duration:
    stage = costs.stages[op.stage_id]
    return stage.forward[op.microbatch], stage.forward_communication[op.microbatch]


def _backward(costs: StepCosts, op: PipelineOp) -> _Duration:
    stage = costs.stages[op.stage_id]
    return stage.backward[op.microbatch], stage.backward_communication[op.microbatch]


_DURATIONS: dict[OpKind, Callable[[StepCosts, PipelineOp], _Duration]] = {
    "forward": _forward,
    "backward": _backward,
    "hop": lambda costs, op: (costs.hops[op.stage_id, op.target_id][op.microbatch], None),
    "hop_back": lambda costs, op: (costs.hops_back[op.target_id, op.stage_id][op.microbatch], None),
    "share": lambda costs, op: (0.0, None),
    "share_back": lambda costs, op: (0.0, None),
    "gather": lambda costs, op: (costs.stages[op.stage_id].gather, None),
    "reduce": lambda costs, op: (costs.stages[op.stage_id].reduce, None),
    "update": lambda costs, op: (costs.stages[op.stage_id].update, None),
    "norm": lambda costs, op: (costs.norm, None),
}


def _check_costs(devices: Mapping[StageId, Int[np.ndarray, "_ _"]], op_graph: OpGraph, costs: StepCosts) -> None:
    """Raises ScheduleError if the costs are not those of this op graph on these devices."""
    graph = op_graph.stage_graph
    replicas = {stage: len(devices[stage]) // graph.copy_count(stage[0]) for stage in graph.stages}
    for stage in graph.stages:
        _check_shape(f"the costs of stage {stage}", costs.stages, stage, op_graph, replicas[stage])
    for source, target in graph.edges:
        _check_shape("StepCosts.hops", costs.hops, (source, target), op_graph, replicas[target])
        if source in op_graph.backward_stages:
            _check_shape("StepCosts.hops_back", costs.hops_back, (source, target), op_graph, replicas[source])


def _check_shape(name: str, table: Mapping, key: StageId | StageEdge, op_graph: OpGraph, replicas: int) -> None:
    if key not in table:
        raise ScheduleError(f"{name}: there are none for {key}; give [microbatches, replicas]")
    shape = getattr(table[key], "forward", table[key]).shape
    if shape != (op_graph.microbatches, replicas):
        raise ScheduleError(
            f"{name}: {key} has shape {list(shape)}, but the step has {op_graph.microbatches} microbatches "
            f"on {replicas} replicas"
        )
