"""The bubble schedule of Optimus (arXiv 2408.03505, sections 4.2 to 4.4): encoders run where the backbone idles.

The backbone's own order is interleaved 1F1B by itself. Encoders on its devices run in its bubbles: their forwards
before it needs them, their backwards after it has their gradients. What no bubble holds comes before the backbone's
first op or after its last, or in one program with ops of the backbone whose collectives are exposed.
"""

import dataclasses
import functools

from sharding.plans.resolved.stage_graph import PipelineRank
from sharding.schedules.colocation.colocated_step import ColocatedStep, colocated_step
from sharding.schedules.colocation.whole_schedule import whole_schedule
from sharding.schedules.in_flight import InFlightLimits, InFlightMicrobatches
from sharding.schedules.interleaved_1f1b import interleaved, interleaved_in_flight
from sharding.schedules.ops import OpGraph, Schedule

_MOST_PLACED = 3  # orders in which hops are placed, which takes longer than all else
_WORTHWHILE = 1 - 1e-9
"""A candidate replaces an earlier one only if it takes less than this share of its time, rounding apart."""


def colocated(op_graph: OpGraph, max_in_flight: InFlightLimits | None = None) -> Schedule:
    """The shortest of: encoders in all bubbles, also in bundles, in the outer bubbles alone, and interleaved 1F1B.

    Where no unit shares the backbone's devices and feeds it, interleaved 1F1B.

    Args:
        op_graph: The step; its seconds say how long ops take, else all take as long as each other.
        max_in_flight: How many microbatches each rank may hold; by default `colocated_in_flight`.
    """
    default = _default_order(_SameObject(op_graph))
    if default is None:
        return interleaved(op_graph, max_in_flight)
    limits = max_in_flight or default.in_flight
    encoders = default.step.units.encoders
    if all(limits[rank] <= held for rank, held in default.in_flight.items() if rank[0] not in encoders):
        return default.schedule
    step = colocated_step(op_graph, limits)
    wider = None if step is None else _shortest(op_graph, step)
    if wider is None or any(held > limits[rank] for rank, held in most_in_flight(wider.schedule).items()):
        return default.schedule
    return wider.schedule if wider.seconds < _WORTHWHILE * default.seconds else default.schedule


def colocated_in_flight(op_graph: OpGraph) -> dict[PipelineRank, int]:
    """How many microbatches each rank holds at once in the order of `colocated`; of the backbone as interleaved 1F1B.

    Encoders' ranks hold a microbatch from its forward, which comes early where that is when the backbone idles, until
    its backward.
    """
    default = _default_order(_SameObject(op_graph))
    return interleaved_in_flight(op_graph) if default is None else default.in_flight


def coarse_colocated(op_graph: OpGraph) -> Schedule:
    """Encoders before the backbone's first op on their devices and after its last (section 4.2), for comparison."""
    step = colocated_step(op_graph)
    return interleaved(op_graph) if step is None else whole_schedule(op_graph, step.coarse())


def most_in_flight(schedule: Schedule) -> dict[PipelineRank, int]:
    """The most microbatches that each rank holds at once in a schedule; at least 1."""
    counts = InFlightMicrobatches(schedule.op_graph)
    most = dict.fromkeys(schedule.op_graph.stage_graph.stages_of, 1)
    for op in schedule.ops:
        counts.record(op)
        if op.kind == "forward":
            rank = schedule.op_graph.stage_graph.rank_of_microbatch(op.stage_id, op.microbatch)
            most[rank] = max(most[rank], counts[rank])
    return most


@dataclasses.dataclass(frozen=True)
class _Order:
    """A schedule of a step, its seconds, and the microbatches that its ranks hold."""

    step: ColocatedStep
    schedule: Schedule
    seconds: float
    in_flight: dict[PipelineRank, int]


class _SameObject:
    """A key that is equal only for the same op graph, which cannot be hashed; a plan's limits and order share one."""

    def __init__(self, op_graph: OpGraph) -> None:
        self.op_graph = op_graph

    def __hash__(self) -> int:
        return id(self.op_graph)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _SameObject) and self.op_graph is other.op_graph


@functools.lru_cache(maxsize=1)
def _default_order(key: _SameObject) -> _Order | None:
    """The order within the limits of `colocated_in_flight`; None where no encoder shares a backbone's devices."""
    step = colocated_step(key.op_graph)
    return None if step is None else _shortest(key.op_graph, step)


def _shortest(op_graph: OpGraph, step: ColocatedStep) -> _Order:
    """The order that takes the shortest time with its hops; of orders that take the same time the first.

    Hops are placed in the `_MOST_PLACED` orders with the shortest passes and in the two that serve as comparisons,
    until the passes alone take longer than the best.
    """
    best = None
    compared = (step.coarse(), step.interleaved())
    orders = sorted([*step.fine(), *step.bundled(), *compared, *step.in_waves()], key=lambda order: order.seconds)
    placed = orders[:_MOST_PLACED] + [order for order in orders[_MOST_PLACED:] if order in compared]
    for order in placed:
        if best and order.seconds >= _WORTHWHILE * best.with_hops.seconds:
            break
        if not best or order.with_hops.seconds < _WORTHWHILE * best.with_hops.seconds:
            best = order
    assert best
    hosts = step.units.backbone if step.has_bundles else None
    schedule = whole_schedule(op_graph, best, hosts)
    return _Order(step, schedule, best.with_hops.seconds, _limits(step, schedule))


def _limits(step: ColocatedStep, schedule: Schedule) -> dict[PipelineRank, int]:
    """Microbatches that ranks hold in a schedule; units other than encoders may hold as many as in interleaved 1F1B."""
    held, usual = most_in_flight(schedule), interleaved_in_flight(schedule.op_graph)
    return {rank: most if rank[0] in step.units.encoders else max(most, usual[rank]) for rank, most in held.items()}
