"""List scheduling: devices that are free run the most urgent op that is ready; an op takes a slot or its seconds."""

import itertools
from collections.abc import Mapping, Sequence

from sharding.plans.resolved.stage_graph import PipelineRank, StageId
from sharding.schedules.hop_order import order_hops
from sharding.schedules.in_flight import InFlightLimits
from sharding.schedules.list_order import ListOrder, Priority
from sharding.schedules.numbered_passes import NumberedPasses, rank_device_bits
from sharding.schedules.ops import OpGraph, PipelineOp, Schedule, StageSeconds
from sharding.schedules.weights_and_gradients import WeightsAndGradients

ONE_SLOT = StageSeconds(forward=1.0, backward=1.0, wgrad=1.0)
"""Where no seconds are known, all ops of `COMPUTE_KINDS` take as long as each other."""

_USUAL = StageSeconds(forward=1.0, backward=2.0)  # a backward has two matmuls for every one of the forward


def list_schedule(
    op_graph: OpGraph,
    max_in_flight: InFlightLimits,
    priority: Priority,
    fixed_orders: Mapping[PipelineRank, Sequence[PipelineOp]] | None = None,
    seconds: Mapping[StageId, StageSeconds] | None = None,
) -> Schedule:
    """Orders all ops of a pass by when they start: forwards and backwards (`list_events`), and others among them.

    Args:
        op_graph: The ops and their dependencies.
        max_in_flight: How many microbatches each rank may hold at once; at least 1.
        priority: Which ops run first.
        fixed_orders: For some ranks, all their forwards and backwards in an order to keep, even if devices stay idle;
            wgrads run between them.
        seconds: How long the ops of every stage take; by default all take one slot.

    Raises:
        ScheduleError: A stage whose microbatches one program runs, or one that feeds it, may not hold all of them.
    """
    passes = NumberedPasses(op_graph)
    return schedule_of_events(passes, list_events(passes, max_in_flight, priority, fixed_orders, seconds))


def list_events(
    passes: NumberedPasses,
    max_in_flight: InFlightLimits,
    priority: Priority,
    fixed_orders: Mapping[PipelineRank, Sequence[PipelineOp]] | None = None,
    seconds: Mapping[StageId, StageSeconds] | None = None,
) -> list[int]:
    """When the ops of `COMPUTE_KINDS` start and end, in order: n where op n starts, and ~n where it ends.

    Whenever devices become free, the ready ops are taken by priority; an op needs all its devices free. A rank that
    holds as many microbatches as it may starts no forward. Where limits and fixed orders leave nothing that may run,
    the oldest microbatch in flight runs its next op in spite of them: it depends on no other microbatch. Only stages
    whose microbatches one program runs need all of them, and have room for them; such a stage takes them in order, and
    what it makes is there after the last.

    Args:
        passes: The ops; the other arguments are those of `list_schedule`.
        max_in_flight: As there.
        priority: As there.
        fixed_orders: As there.
        seconds: As there.

    Raises:
        ScheduleError: As there.
    """
    op_graph = passes.op_graph
    orders = {**(fixed_orders or {}), **_orders_of_compiled(op_graph)}
    seconds = seconds or dict.fromkeys(op_graph.stage_graph.stages, ONE_SLOT)
    return ListOrder(passes, max_in_flight, priority, orders, seconds).events()


def schedule_of_events(passes: NumberedPasses, events: Sequence[int]) -> Schedule:
    """The schedule of a pass whose ops of `COMPUTE_KINDS` start and end in this order (`list_events`).

    A hop takes no time and follows the ops that end with the one that produces its array, so that no op in between
    waits for it where hops occupy both ends. Weights are gathered before the first input of any stage on their devices,
    and gradients reduced as soon as their devices compute no more (`WeightsAndGradients`).
    """
    op_graph, order = passes.op_graph, []
    collectives = WeightsAndGradients(op_graph, rank_device_bits(op_graph.stage_graph))
    for event in events:
        if event >= 0:
            op = passes.ops[event]
            order += [*collectives.before(op), op]
        else:
            op = passes.ops[~event]
            for hop in op_graph.hops_after(op):
                order += [*collectives.before(hop), hop]
            order += collectives.after(op)
    return Schedule(op_graph, (*order, *collectives.rest()))


def schedule_with_free_ends(passes: NumberedPasses, events: Sequence[int]) -> Schedule:
    """As `schedule_of_events`, with every hop where both its ends are free (`order_hops`).

    Without seconds of stages all take as long as each other, and backwards twice as long as forwards. No pass may be of
    a stage that one program runs, or leave its wgrad for later.
    """
    op_graph, order = passes.op_graph, []
    collectives = WeightsAndGradients(op_graph, rank_device_bits(op_graph.stage_graph))
    seconds = None if op_graph.seconds else dict.fromkeys(op_graph.stage_graph.stages, _USUAL)
    programs = [(op,) for op in passes.started(events)]
    for event in order_hops(op_graph, programs, seconds=seconds).events:
        (op,) = event.ops
        order += collectives.after(op) if event.kind == "done" else [*collectives.before(op), op]
    return Schedule(op_graph, (*order, *collectives.rest()))


def warm_up_order(op_graph: OpGraph, rank: PipelineRank, warm_up: int) -> list[PipelineOp]:
    """All forwards and backwards of a rank: `warm_up` forwards, then forward and backward alternating, then the rest.

    Forwards run in groups of pp microbatches: a group through the rank's first chunk, then through its second, and so
    on; backwards go through the chunks in reverse (Narayanan et al., arXiv 2104.04473, section 2.2).
    """
    graph, size = op_graph.stage_graph, op_graph.stage_graph.pp.get(rank[0], 1)
    stages = graph.stages_of[rank]
    numbers = [number for number in range(op_graph.microbatches) if graph.rank_of_microbatch(stages[0], number) == rank]
    groups = [numbers[first : first + size] for first in range(0, len(numbers), size)]
    forwards = [PipelineOp("forward", *stage, number) for group in groups for stage in stages for number in group]
    backwards = [
        PipelineOp("backward", *stage, number) for group in groups for stage in reversed(stages) for number in group
    ]
    pairs = itertools.zip_longest(forwards[warm_up:], backwards)
    ordered = (*forwards[:warm_up], *(op for pair in pairs for op in pair if op))
    return [op for op in ordered if op.kind == "forward" or op.stage_id in op_graph.backward_stages]


def _orders_of_compiled(op_graph: OpGraph) -> dict[PipelineRank, list[PipelineOp]]:
    """All forwards, then all backwards, of every stage that one program runs."""
    ranks = (op_graph.stage_graph.ranks_of[stage][0] for stage in op_graph.stage_graph.compiled)
    return {rank: warm_up_order(op_graph, rank, op_graph.microbatches) for rank in ranks}
