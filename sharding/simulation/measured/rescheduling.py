"""The order of a step computed anew from its measured seconds, where they differ from the predicted ones.

The trainer's rescheduler calls `reconsider_order` after a measured step.
"""

import dataclasses
import itertools

from sharding.plans.plan import Plan
from sharding.plans.resolved.resolved_plan import ResolvedPlan
from sharding.plans.resolved.stage_graph import PipelineRank, StageGraph
from sharding.plans.unit_plan import UnitPlan
from sharding.schedules.checks import check_schedule
from sharding.schedules.named.build import build_schedule, in_flight_limits, training_op_graph
from sharding.schedules.ops import COMPUTE_KINDS, OpKind, PipelineOp, Schedule, ScheduleError
from sharding.schedules.pass_seconds import pass_seconds
from sharding.simulation.measured.measured_seconds import MeanSeconds, mean_seconds, pass_of_timeline
from sharding.simulation.timeline import Timeline

LEAST_GAIN = 0.01
"""A new order is taken if it shortens the forwards and backwards by this share: measurements of a step vary."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class NewOrder:
    """An order that is shorter than the one in force.

    Attributes:
        schedule: The new order.
        before, after: Seconds of the forwards and backwards of a step in the order in force and in the new one, both
            predicted from the same measured seconds.
        same_sums: Whether each stage of each pipeline replica takes its microbatches in the same order as before, so
            that losses and gradients are summed in the same order and have the same bits.
    """

    schedule: Schedule
    before: float
    after: float
    same_sums: bool


@dataclasses.dataclass(frozen=True)
class Reconsidered:
    """The result of comparing a measured step with its prediction.

    Attributes:
        expected: Seconds that its forwards and backwards are predicted to take from now on; None if that is not known.
        new_order: The order to change to; None to keep the one in force.
    """

    expected: float | None
    new_order: NewOrder | None = None


def expected_seconds(schedule: Schedule) -> float | None:
    """Seconds of the forwards and backwards of a step by the seconds of its plan; None if that has none."""
    return pass_seconds(schedule) if schedule.op_graph.seconds else None


def reconsider_order(
    resolved: ResolvedPlan, schedule: Schedule, timeline: Timeline, expected: float | None, tolerance: float
) -> Reconsidered:
    """Compares a measured step with its prediction, and computes its order anew if they differ.

    The new order is the plan's schedule for the measured seconds. It is taken if the step, replayed with the mean
    seconds of all ops, hops included, is shorter in it by `LEAST_GAIN`. What it is then expected to take is what the
    measured step took, shortened by as much: the replay knows nothing of launches that came late. An order that holds
    more microbatches in flight than the plan's limits is not taken: memory is planned for these. Nor is one with other
    bundles: their programs would have to be compiled, and what ops take in them is not measured apart. A plan with a
    compiled unit keeps its order.

    Args:
        resolved: The plan.
        schedule: The order in force, of the ops of all devices.
        timeline: A step that was measured in this order.
        expected: Seconds that its forwards and backwards were expected to take; None if nothing was expected.
        tolerance: The share of what was expected by which the measured seconds may differ from it.

    Raises:
        ScheduleError: The plan's schedule cannot order the ops by these seconds.
    """
    # The others run before a compiled unit's programs, between them or after them, in whatever order.
    if any(unit.is_compiled for unit in resolved.plan.units):
        return Reconsidered(expected)
    measured = pass_of_timeline(timeline)
    if expected is not None and abs(measured - expected) <= tolerance * expected:
        return Reconsidered(expected)
    op_graph, means = schedule.op_graph, mean_seconds(timeline)
    if not all(means.of_stage(op_graph.stage_graph, "forward", stage) for stage in op_graph.stage_graph.stages):
        return Reconsidered(expected)  # a unit without a single item in this batch will have some in others
    measured_plan = resolved.with_plan(with_measured_seconds(resolved.plan, op_graph.stage_graph, means))
    anew = build_schedule(measured_plan, op_graph.trained_stages, op_graph.tied_stages)
    before, after = means.pass_of(schedule), means.pass_of(anew)
    shorter = after <= (1 - LEAST_GAIN) * before
    if not shorter or _bundles(anew) != _bundles(schedule) or not _holds_no_more(resolved, anew):
        return Reconsidered(measured)
    same_sums = _order_of_sums(schedule) == _order_of_sums(anew)
    new_order = NewOrder(schedule=anew, before=before, after=after, same_sums=same_sums)
    return Reconsidered(measured * after / before, new_order)


def _holds_no_more(resolved: ResolvedPlan, anew: Schedule) -> bool:
    """Whether an order keeps to the limits of the plan, which some schedules derive from the seconds of ops."""
    planned = training_op_graph(resolved, anew.op_graph.trained_stages, anew.op_graph.tied_stages)
    try:
        check_schedule(anew, in_flight_limits(resolved.plan, planned))
    except ScheduleError:  # of an order that has been checked by its own limits
        return False
    return True


def with_measured_seconds(plan: Plan, graph: StageGraph, means: MeanSeconds) -> Plan:
    """The plan with the measured seconds of every stage.

    Nobody has measured how long devices wait for collectives inside an op: that share stays as the plan has it.
    """
    return dataclasses.replace(plan, units=tuple(_with_measured_seconds(unit, graph, means) for unit in plan.units))


def _with_measured_seconds(unit: UnitPlan, graph: StageGraph, means: MeanSeconds) -> UnitPlan:
    kinds: tuple[OpKind, ...] = ("forward", "backward")
    fields: dict[str, tuple[float, ...]] = {}
    for kind in kinds:
        planned, waits = (
            getattr(unit.schedule_hints, f"{kind}_seconds"),
            getattr(unit.schedule_hints, f"{kind}_communication"),
        )
        measured = [means.of_stage(graph, kind, (unit.name, stage)) for stage in range(unit.stage_count)]
        fields[f"{kind}_seconds"] = tuple(measured)
        if waits:
            shares = [wait / seconds if seconds else 0.0 for wait, seconds in zip(waits, planned, strict=True)]
            fields[f"{kind}_communication"] = tuple(
                min(share * seconds, seconds) for share, seconds in zip(shares, measured, strict=True)
            )
    return unit.with_hints(**fields)


def _bundles(schedule: Schedule) -> frozenset[tuple[PipelineOp, PipelineOp]]:
    """The pairs of ops that run in one program."""
    pairs = itertools.pairwise(schedule.ops)
    return frozenset((first, second) for first, second in pairs if second in schedule.bundled)


def _order_of_sums(schedule: Schedule) -> dict[tuple[OpKind, PipelineRank, int], list[int]]:
    """The microbatches of each stage's forwards and backwards on each pipeline replica, in the order of its sums."""
    graph, order = schedule.op_graph.stage_graph, {}
    for op in schedule.ops:
        if op.kind in COMPUTE_KINDS:
            rank = graph.rank_of_microbatch(op.stage_id, op.microbatch)
            order.setdefault((op.kind, rank, op.stage), []).append(op.microbatch)
    return order
