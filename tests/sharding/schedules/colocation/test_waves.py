"""Waves through generators on a backbone's devices: all of them at once, where each would stop a rank of its own."""

from sharding.plans.resolved.stage_graph import PipelineReplicas, StageGraph
from sharding.schedules.checks import check_schedule
from sharding.schedules.colocation.colocated import colocated, colocated_in_flight
from sharding.schedules.interleaved_1f1b import interleaved
from sharding.schedules.ops import OpGraph, StageSeconds
from sharding.schedules.pass_seconds import pass_seconds

RANKS, LANES, MICROBATCHES = 2, 4, 16


def step_with_generator() -> OpGraph:
    """A backbone on two ranks of four devices, an encoder on each rank, and a generator on each device."""
    devices = {
        ("vision", 0): frozenset(range(RANKS * LANES)),
        **{("backbone", rank): frozenset(range(rank * LANES, (rank + 1) * LANES)) for rank in range(RANKS)},
        ("generator", 0): frozenset(range(RANKS * LANES)),
    }
    turns = {
        unit: PipelineReplicas(
            tuple(frozenset(range(first * width, (first + 1) * width)) for first in range(RANKS * LANES // width)),
            tuple(number % (RANKS * LANES // width) for number in range(MICROBATCHES)),
        )
        for unit, width in (("vision", LANES), ("generator", 1))
    }
    edges = (
        (("vision", 0), ("backbone", 0)),
        (("backbone", 0), ("backbone", 1)),
        (("backbone", 1), ("generator", 0)),
    )
    graph = StageGraph(devices, edges, {"backbone": RANKS}, pipeline_replicas=turns)
    stages = frozenset(devices)
    return OpGraph(
        stage_graph=graph,
        microbatches=MICROBATCHES,
        backward_stages=stages,
        trained_stages=stages,
        seconds={
            ("vision", 0): StageSeconds(0.1, 0.2),
            **{("backbone", rank): StageSeconds(1.0, 2.0) for rank in range(RANKS)},
            ("generator", 0): StageSeconds(4.0, 4.0),
        },
    )


def test_all_generators_run_at_once_where_ranks_may_hold_a_wave():
    op_graph = step_with_generator()
    limits = {rank: limit + MICROBATCHES for rank, limit in colocated_in_flight(op_graph).items()}
    schedule = colocated(op_graph, limits)
    check_schedule(schedule, limits)
    # One wave: all forwards, two rounds of generators, all backwards, and a pipeline of two ranks to fill and drain.
    passes = (MICROBATCHES + 1) * (1.0 + 2.0) + 2 * (4.0 + 4.0)
    assert pass_seconds(schedule) <= passes + 3.0
    in_turn = MICROBATCHES / RANKS * (4.0 + 4.0)  # each generator stops its rank by itself
    assert pass_seconds(schedule) < pass_seconds(interleaved(op_graph, limits)) - in_turn / 4


def test_a_wave_is_no_larger_than_the_microbatches_that_every_rank_may_hold():
    op_graph = step_with_generator()
    for extra in range(4):
        limits = {rank: limit + extra for rank, limit in colocated_in_flight(op_graph).items()}
        check_schedule(colocated(op_graph, limits), limits)
