"""GPipe and 1F1B, over whole graphs of stages instead of one chain."""

from sharding.plans.resolved.stage_graph import PipelineRank
from sharding.schedules.in_flight import InFlightLimits, limit_of_pipeline_replicas
from sharding.schedules.list_order import Priority
from sharding.schedules.list_scheduling import list_schedule, warm_up_order
from sharding.schedules.ops import OpGraph, Schedule


def gpipe(op_graph: OpGraph, max_in_flight: InFlightLimits | None = None) -> Schedule:
    """All forwards of a rank, then all its backwards (GPipe, arXiv 1811.06965, section 2.3)."""
    max_in_flight = max_in_flight or gpipe_in_flight(op_graph)
    order = {rank: warm_up_order(op_graph, rank, warm_up=forwards) for rank, forwards in max_in_flight.items()}
    return list_schedule(op_graph, max_in_flight, backwards_first(op_graph), order)


def gpipe_in_flight(op_graph: OpGraph) -> dict[PipelineRank, int]:
    """How many microbatches each rank may hold at once: all of them, in each of its chunks."""
    graph, count = op_graph.stage_graph, op_graph.microbatches
    return {rank: len(stages) * count for rank, stages in graph.stages_of.items()}


def one_f_one_b(op_graph: OpGraph, max_in_flight: InFlightLimits | None = None) -> Schedule:
    """A backward as soon as one is ready (PipeDream-Flush, arXiv 2006.09503, section 2.2), over a graph of stages.

    With higher limits than `one_f_one_b_in_flight`, ranks run more forwards while they wait for their first backward,
    so that later they wait less for late inputs (eager 1F1B, arXiv 2211.05322, section 4).
    """
    return list_schedule(op_graph, max_in_flight or one_f_one_b_in_flight(op_graph), backwards_first(op_graph))


def one_f_one_b_in_flight(op_graph: OpGraph) -> dict[PipelineRank, int]:
    """How many microbatches each rank may hold at once: the number of stages from its first to the farthest sink.

    On a chain of p stages that is the textbook's p - i of stage i. On a graph, a branch that is shorter than another
    parallel to it holds no more than it needs to keep its own chain full. Pipeline replicas of a unit hold as many
    together.
    """
    graph, limits = op_graph.stage_graph, {}
    for stage in reversed(graph.stages):  # the first stage of a rank last
        limits |= limit_of_pipeline_replicas(graph, stage, graph.heights[stage])
    return limits


def backwards_first(op_graph: OpGraph) -> Priority:
    """Backwards first; then the lowest microbatch and the deepest stage."""
    depths = op_graph.stage_graph.depths
    return lambda op: (op.kind != "backward", op.microbatch, -depths[op.stage_id])
