"""Divisions of microbatches among pipeline replicas: as short as the best of all, and fast where these are too many."""

import itertools

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sharding.schedules.checks import check_schedule
from sharding.schedules.colocation.bubble_use import bubble_use
from sharding.schedules.colocation.colocated import colocated, colocated_in_flight
from sharding.schedules.colocation.colocated_replicas import assign_microbatches
from sharding.schedules.colocation.colocated_step import ColocatedStep, colocated_step
from sharding.schedules.pass_seconds import pass_seconds
from tests.sharding.colocated_steps import Backbone, Encoder, colocated_op_graph, colocated_recipes, with_copies

SECONDS = st.floats(0.05, 2.0)


class Timetables:
    """How much longer encoders make a step, by their division among replicas, before ops move up in the order."""

    def __init__(self, step: ColocatedStep) -> None:
        self._fillers = step.fillers
        self.alone = step.timeline.end

    def added(self, pipeline_replicas) -> float:
        return min(filler.seconds(pipeline_replicas) for filler in self._fillers)


@st.composite
def steps(draw: st.DrawFn) -> tuple:
    """Arguments of `colocated_op_graph`, with pipeline replicas of one encoder."""
    count = draw(st.integers(2, 3))
    ranks = count * draw(st.integers(1, 2))
    pp = draw(st.sampled_from([1, ranks // count]))
    microbatches = draw(st.integers(count, 6))
    backbone = Backbone(ranks=ranks, chunks=draw(st.integers(1, 2)), forward=draw(SECONDS), backward=draw(SECONDS))
    pipeline_replicas = tuple(number % count for number in range(microbatches))
    trains = draw(st.booleans())
    return backbone, (
        Encoder(draw(st.integers(1, 3)), pp, pipeline_replicas, draw(SECONDS) / 2, draw(SECONDS) / 2, trains),
    )


@given(recipe=steps())
@settings(max_examples=40, deadline=None)
def test_no_division_of_few_microbatches_is_shorter(recipe):
    op_graph = colocated_op_graph(*recipe)
    step = colocated_step(op_graph)
    assume(step is not None)  # the encoder may have more work than the backbone, whose role it then takes
    timetables = Timetables(step)
    assigned = assign_microbatches(op_graph)
    count, microbatches = op_graph.stage_graph.pipeline_replica_count("encoder0"), op_graph.microbatches
    divisions = itertools.product(range(count), repeat=microbatches)
    least = min(timetables.added({"encoder0": taken}) for taken in divisions if len(set(taken)) == count)
    assert timetables.added(assigned) == pytest.approx(least, rel=1e-9, abs=1e-9 * timetables.alone)
    divided = colocated_step(with_copies(op_graph, assigned))
    assert divided is not None
    shortest = min(order.seconds for order in divided.fine())
    assert shortest <= (timetables.alone + least) * (1 + 1e-9)


@given(recipe=colocated_recipes())
@settings(max_examples=20, deadline=None)
def test_divisions_are_valid(recipe):
    op_graph = colocated_op_graph(*recipe)
    assigned = assign_microbatches(op_graph)
    assert all(
        set(taken) == set(range(op_graph.stage_graph.pipeline_replica_count(unit))) for unit, taken in assigned.items()
    )
    given_copies = {
        unit: pipeline_replicas.of_microbatch
        for unit, pipeline_replicas in op_graph.stage_graph.pipeline_replicas.items()
    }
    divided = with_copies(op_graph, given_copies | assigned)
    check_schedule(colocated(divided), colocated_in_flight(divided))


def test_exchanges_find_no_worse_than_any_numbers_of_microbatches():
    """Optimus enumerates how many microbatches each pipeline replica takes;

    here 4 pipeline replicas take 12 microbatches by turns.
    """
    turns = tuple(number % 4 for number in range(12))
    op_graph = colocated_op_graph(Backbone(ranks=4, chunks=2), (Encoder(2, 1, turns, 0.4, 0.8),))
    timetables = Timetables(colocated_step(op_graph))
    numbers = (counts for counts in itertools.product(range(1, 10), repeat=4) if sum(counts) == 12)
    least = min(timetables.added({"encoder0": by_turns(counts)}) for counts in numbers)
    assert timetables.added(assign_microbatches(op_graph)) <= least * (1 + 1e-9)


def by_turns(numbers: tuple[int, ...]) -> tuple[int, ...]:
    """Copies take microbatches by turns until each has its number."""
    rounds = itertools.chain.from_iterable(
        [pipeline_replica for pipeline_replica in range(4) if numbers[pipeline_replica] > turn] for turn in range(12)
    )
    return tuple(rounds)


def test_every_encoder_gets_copies_of_its_own():
    four, two = tuple(n % 4 for n in range(8)), tuple(n % 2 for n in range(8))
    op_graph = colocated_op_graph(
        Backbone(ranks=4, chunks=2), (Encoder(2, 1, four, 0.2, 0.4), Encoder(1, 2, two, 0.3, 0.3))
    )
    assigned = assign_microbatches(op_graph)
    assert {unit: set(taken) for unit, taken in assigned.items()} == {"encoder0": {0, 1, 2, 3}, "encoder1": {0, 1}}
    divided, given_copies = with_copies(op_graph, assigned), pass_seconds(colocated(op_graph))
    assert pass_seconds(colocated(divided)) <= given_copies
    assert bubble_use(colocated(divided)).step == pass_seconds(colocated(divided))


def test_an_encoder_without_copies_has_nothing_to_assign():
    op_graph = colocated_op_graph(Backbone(ranks=1), (Encoder(1, 1, (0, 0), 1.0, 1.0),))
    assert assign_microbatches(op_graph) == {}
