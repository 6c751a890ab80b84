"""Orders of hops that occupy both their ends: valid, no shorter than the passes, and without chains of waits."""

from hypothesis import given, settings

from sharding.plans.resolved.stage_graph import StageGraph
from sharding.schedules.checks import check_schedule
from sharding.schedules.colocation.colocated import most_in_flight
from sharding.schedules.hop_order import HOP_SHARE, OrderWithHops, order_hops
from sharding.schedules.interleaved_1f1b import interleaved
from sharding.schedules.ops import COMPUTE_KINDS, OpGraph, PipelineOp, Schedule, StageSeconds
from sharding.schedules.pass_seconds import pass_seconds
from tests.sharding.colocated_steps import colocated_op_graph, colocated_recipes


def with_hops(schedule: Schedule) -> OrderWithHops:
    return order_hops(schedule.op_graph, [(op,) for op in schedule.ops if op.kind in COMPUTE_KINDS])


def forward_graph(ranks: int, edges: tuple, seconds: dict[int, float], microbatches: int) -> OpGraph:
    """Forwards of a unit with one stage a rank, each on its own device."""
    stages = {("unit", number): frozenset({number}) for number in range(ranks)}
    return OpGraph(
        stage_graph=StageGraph(stages, tuple((("unit", one), ("unit", other)) for one, other in edges)),
        microbatches=microbatches,
        seconds={("unit", number): StageSeconds(seconds[number], 0.0) for number in range(ranks)},
        with_update=False,
    )


@given(recipe=colocated_recipes())
@settings(max_examples=30, deadline=None)
def test_all_passes_and_hops_are_there_in_a_valid_order_of_at_least_the_seconds_of_the_passes(recipe):
    op_graph = colocated_op_graph(*recipe)
    schedule = interleaved(op_graph)
    ordered = with_hops(schedule)
    events = [op for event in ordered.events if event.kind != "done" for op in event.ops]
    others = [op for op in schedule.ops if op not in set(events)]
    gathers = [op for op in others if op.kind in ("gather", "send_tied_weight")]
    whole = Schedule(op_graph, (*gathers, *events, *(op for op in others if op not in gathers)))
    check_schedule(whole, most_in_flight(whole))
    assert ordered.seconds >= pass_seconds(schedule) * (1 - 1e-9)
    done = [event.ops[0] for event in ordered.events if event.kind == "done"]
    assert sorted(done) == sorted(op for op in schedule.ops if op.kind in COMPUTE_KINDS)


def test_devices_do_not_wait_for_the_other_end_of_a_hop_that_is_not_needed_yet():
    """Rank 0 ends forwards while rank 1 is in a long one."""
    ordered = with_hops(interleaved(forward_graph(2, ((0, 1),), {0: 1.0, 1: 10.0}, 3)))
    ops = [event.ops[0] for event in ordered.events if event.kind != "done"]
    assert ops.index(PipelineOp("forward", "unit", 0, 2)) < ops.index(PipelineOp("hop", "unit", 0, 1, "unit", 1))


def test_hops_between_neighbours_that_are_ready_together_run_in_two_rounds():
    ranks, microbatches = 8, 20
    edges = tuple((number, number + 1) for number in range(ranks - 1))
    op_graph = forward_graph(ranks, edges, dict.fromkeys(range(ranks), 1.0), microbatches)
    ordered = with_hops(interleaved(op_graph))
    slots = microbatches + ranks - 1
    assert ordered.seconds <= slots * (1 + 2 * HOP_SHARE) + 1e-9
