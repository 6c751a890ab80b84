"""Interleaved 1F1B (Narayanan et al., arXiv 2104.04473, section 2.2) over graphs of units with any number of chunks.

A pipeline rank runs its forwards in groups of pp microbatches: the group through its first chunk, then through its
second, and so on; its backwards go the other way. A unit without chunks has one stage per rank, as in plain 1F1B.
"""

from sharding.plans.resolved.stage_graph import PipelineRank, StageId
from sharding.schedules.in_flight import InFlightLimits, limit_of_pipeline_replicas
from sharding.schedules.list_order import Priority
from sharding.schedules.list_scheduling import (
    list_events,
    schedule_of_events,
    schedule_with_free_ends,
    warm_up_order,
)
from sharding.schedules.numbered_passes import NumberedPasses
from sharding.schedules.one_f_one_b import backwards_first
from sharding.schedules.ops import OpGraph, PipelineOp, Schedule
from sharding.schedules.pass_seconds import last_end, pass_times

_WORTHWHILE = 0.99
"""An order by seconds must take at most this share of the order by slots: where hops occupy both their ends, ranks
that work in slots wait less for each other."""


def interleaved(op_graph: OpGraph, max_in_flight: InFlightLimits | None = None) -> Schedule:
    """1F1B over ranks with chunks; on a chain, where pp divides the microbatches, exactly the paper's order.

    That order supposes that all ops take as long as each other. A stage without chunks does not: of a generator that
    is as slow as a rank of the backbone with v chunks, an op takes as long as v of the backbone's, which then wait for
    it. Where the seconds of ops are known, orders by these are made too, forwards first or backwards first, and the
    one that takes the shortest time is returned.

    Between chunks there are as many hops as between ranks, in a ring: where they occupy both their ends, each of them
    right after its producer would make ranks wait for each other all around it. So a hop runs where both ends are free,
    if all stages run backwards: how many microbatches a stage without backwards holds depends on when others run.
    """
    passes, graph = NumberedPasses(op_graph), op_graph.stage_graph
    events = interleaved_events(passes, max_in_flight)
    has_chunks = any(len(stages) > 1 for stages in graph.stages_of.values())
    runs_both = op_graph.backward_stages.issuperset(graph.stages) and not op_graph.split_stages
    if has_chunks and runs_both and not graph.compiled:
        return schedule_with_free_ends(passes, events)
    return schedule_of_events(passes, events)


def interleaved_events(passes: NumberedPasses, max_in_flight: InFlightLimits | None = None) -> list[int]:
    """When the ops of `COMPUTE_KINDS` start and end in the order of `interleaved` (`list_events`)."""
    op_graph = passes.op_graph
    limits = max_in_flight or interleaved_in_flight(op_graph)
    in_slots = _events_in_slots(passes, limits)
    if not op_graph.seconds:
        return in_slots
    priorities = (_by_group(op_graph), backwards_first(op_graph))
    by_seconds = [list_events(passes, limits, priority, seconds=op_graph.seconds) for priority in priorities]
    seconds = [last_end(pass_times(op_graph, passes.started(events))) for events in (*by_seconds, in_slots)]
    shortest = min(range(len(by_seconds)), key=seconds.__getitem__)
    return by_seconds[shortest] if seconds[shortest] <= _WORTHWHILE * seconds[-1] else in_slots


def _events_in_slots(passes: NumberedPasses, max_in_flight: InFlightLimits) -> list[int]:
    """The order where all ops take as long as each other.

    Where pp divides the microbatches, ranks keep strictly to the paper's order. Elsewhere the last group is smaller
    and that order would make ranks wait for each other, so they run what is ready: forwards as far as their in-flight
    limit allows, then backwards.
    """
    op_graph, graph = passes.op_graph, passes.op_graph.stage_graph
    fixed_orders = {
        rank: warm_up_order(op_graph, rank, max_in_flight[rank] - 1)
        for rank in graph.stages_of
        if rank[0] in graph.pp
        and rank[0] not in graph.pipeline_replicas
        and op_graph.microbatches % graph.pp[rank[0]] == 0
    }
    return list_events(passes, max_in_flight, _by_group(op_graph), fixed_orders)


def _by_group(op_graph: OpGraph) -> Priority:
    """Forwards first; then the lowest group; within it forwards of the first and backwards of the last chunk first."""
    graph = op_graph.stage_graph
    widest = max(graph.pp.values(), default=1)  # a unit without chunks moves at the pace of units with chunks

    def priority(op: PipelineOp) -> tuple[bool, int, int, int, int]:
        is_backward = op.kind == "backward"
        group = op.microbatch - op.microbatch % graph.pp.get(op.unit, widest)
        chunk = op.stage // graph.pp.get(op.unit, op.stage + 1)
        return (is_backward, group, -chunk if is_backward else chunk, op.microbatch, -graph.depths[op.stage_id])

    return priority


def interleaved_in_flight(op_graph: OpGraph) -> dict[PipelineRank, int]:
    """How many microbatches each rank may hold at once; one that is in several of its chunks counts in each.

    A rank with v > 1 chunks holds what it runs from its first forward until its first backward, which is of its last
    chunk, can run: as many as there are stages from its first chunk to the farthest sink and back to its last chunk.
    On a chain of p ranks that is the paper's 2(p - rank - 1) + (v - 1)p forwards of warm-up and one more; with a
    generator after the backbone it is more. A stage of a unit without chunks holds one microbatch more than the largest
    limit of the stages that it feeds, which is 1F1B's limit where no unit has chunks. Pipeline replicas of a unit hold
    as many together; where they have chunks, each of these microbatches may be in all of them.
    """
    graph = op_graph.stage_graph
    by_rank: dict[PipelineRank, int] = {}
    by_stage: dict[StageId, int] = {}
    for stage in reversed(graph.stages):
        chunks = graph.stages_of[graph.ranks_of[stage][0]]
        if len(chunks) == 1:
            downstream = max((by_stage[target] for target in graph.targets[stage]), default=0)
            rank_limit = by_stage[stage] = 1 + downstream
        else:
            rank_limit = graph.heights[chunks[0]] + graph.heights[chunks[-1]] - 1
            by_stage[stage] = in_flight_of_chunk(rank_limit, graph.pp[stage[0]], len(chunks), chunks.index(stage))
        if len(chunks) > 1 and stage[0] in graph.pipeline_replicas:
            downstream = max((by_stage[target] for target in graph.targets[chunks[-1]]), default=0)
            microbatches = max(1 + downstream, -(-rank_limit // len(chunks)))
            by_rank |= {
                rank: len(chunks) * limit
                for rank, limit in limit_of_pipeline_replicas(graph, stage, microbatches).items()
            }
        else:
            by_rank |= limit_of_pipeline_replicas(graph, stage, rank_limit)
    return by_rank


def in_flight_of_chunk(rank_in_flight: int, pp: int, chunks: int, chunk: int) -> int:
    """The most microbatches in flight in one chunk of a rank that holds `rank_in_flight` in all its chunks.

    The most is reached right before the chunk's first backward, when each of the later chunks has run one group's
    backwards: the rank has then run `rank_in_flight` forwards plus as many as these backwards.
    """
    groups, rest = divmod(rank_in_flight + (chunks - 1 - chunk) * pp, chunks * pp)
    return groups * pp + min(max(rest - chunk * pp, 0), pp)
