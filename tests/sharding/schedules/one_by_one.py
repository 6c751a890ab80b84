"""The slowest order: a microbatch after the other."""

from sharding.schedules.list_scheduling import list_schedule
from sharding.schedules.one_f_one_b import backwards_first
from sharding.schedules.ops import OpGraph, Schedule


def one_by_one(op_graph: OpGraph) -> Schedule:
    """Every pipeline rank holds one microbatch, so that whatever ops take, others are shorter."""
    return list_schedule(op_graph, dict.fromkeys(op_graph.stage_graph.stages_of, 1), backwards_first(op_graph))
