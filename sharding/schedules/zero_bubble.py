"""ZB-H1: 1F1B in which gradients of weights fill bubbles (Qi et al., arXiv 2401.10241, section 2.3).

A stage sends the gradient of its input back before it computes the gradients of its weights, which no op waits for.
With forwards, dgrads and wgrads that take a slot each, a step of m microbatches on a chain of p stages takes 3 m + p -
1 slots, where 1F1B takes 3 m + 3 (p - 1).
"""

from sharding.plans.resolved.stage_graph import PipelineRank
from sharding.schedules.in_flight import InFlightLimits
from sharding.schedules.interleaved_1f1b import interleaved_in_flight
from sharding.schedules.list_order import Priority
from sharding.schedules.list_scheduling import ONE_SLOT, list_schedule, warm_up_order
from sharding.schedules.ops import COMPUTE_KINDS, OpGraph, Schedule


def zero_bubble(op_graph: OpGraph, max_in_flight: InFlightLimits | None = None) -> Schedule:
    """Forwards and backwards in the order of (interleaved) 1F1B, and wgrads when a rank has nothing else to run.

    A rank that holds as many microbatches as it may, counted from the forward to the wgrad, runs a wgrad before its
    next forward.
    """
    limits, graph = max_in_flight or zero_bubble_in_flight(op_graph), op_graph.stage_graph
    orders = {
        rank: warm_up_order(op_graph, rank, forwards - 1) for rank, forwards in interleaved_in_flight(op_graph).items()
    }
    whole_backward = ONE_SLOT._replace(backward=ONE_SLOT.backward + ONE_SLOT.wgrad)
    whole = op_graph.trained_stages - op_graph.split_stages
    seconds = {stage: whole_backward if stage in whole else ONE_SLOT for stage in graph.stages}
    return list_schedule(op_graph, limits, _wgrads_last(op_graph), orders, seconds)


def _wgrads_last(op_graph: OpGraph) -> Priority:
    """Backwards, forwards, wgrads; then the lowest microbatch and the deepest stage."""
    depths = op_graph.stage_graph.depths
    urgency = {kind: number for number, kind in enumerate(("backward", "forward", "wgrad"))}
    assert set(urgency) == set(COMPUTE_KINDS)
    return lambda op: (urgency[op.kind], op.microbatch, -depths[op.stage_id])


def zero_bubble_in_flight(op_graph: OpGraph) -> dict[PipelineRank, int]:
    """How many microbatches each rank may hold at once, until their wgrads: as many as the first rank of its unit.

    On a chain of p stages that is p for all of them, the most that a rank holds in 1F1B.
    """
    limits = interleaved_in_flight(op_graph)
    limit_by_unit: dict[str, int] = {}
    for (unit, _), limit in limits.items():
        limit_by_unit[unit] = max(limit, limit_by_unit.get(unit, 0))
    return {rank: limit_by_unit[rank[0]] for rank in limits}
