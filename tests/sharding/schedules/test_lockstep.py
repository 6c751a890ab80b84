"""Tables of ticks: every op once, in order and after what it needs, and no slot reused while something needs it."""

import itertools
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharding.schedules.checks import check_schedule
from sharding.schedules.lockstep import TickOrder, lockstep_in_flight, lockstep_order, tick_table

SIZES = {
    "ranks": st.integers(1, 5),
    "chunks": st.integers(1, 3),
    "microbatches": st.integers(1, 11),
    "order": st.sampled_from(get_args(TickOrder)),
}


def key_at(ops, tick, rank):
    """(stage, microbatch) of the op of a rank in a tick; None if there is none."""
    if not ops.runs[tick, rank]:
        return None
    return int(ops.chunk[tick, rank]) * ops.runs.shape[1] + rank, int(ops.microbatch[tick, rank])


def ticks_of(ops):
    """By (stage, microbatch) the tick of its op."""
    ticks = {}
    for tick, rank in zip(*np.nonzero(ops.runs), strict=True):
        key = key_at(ops, int(tick), int(rank))
        assert key not in ticks
        ticks[key] = int(tick)
    return ticks


@settings(deadline=None, max_examples=60)
@given(**SIZES)
def test_every_op_runs_once_after_what_it_needs(ranks, chunks, microbatches, order):
    table = tick_table(ranks, chunks, microbatches, order)
    forward, backward = (ticks_of(ops) for ops in (table.forwards, table.backwards))
    everything = set(itertools.product(range(ranks * chunks), range(microbatches)))
    assert set(forward) == everything
    assert set(backward) == (everything if order != "forward_only" else set())
    if order == "gpipe":
        assert max(forward.values()) < min(backward.values())
        assert not any(segment.has_forwards and segment.has_backwards for segment in table.segments())
    for (stage, number), tick in forward.items():
        assert stage == 0 or tick > forward[stage - 1, number]
    for (stage, number), tick in backward.items():
        assert tick >= forward[stage, number]
        assert stage == ranks * chunks - 1 or tick > backward[stage + 1, number]
    for segment in table.segments():
        slots = table.residuals.forward[segment.start : segment.end]
        if order != "forward_only" and segment.has_forwards:
            assert (slots >= 0).all() != segment.lacks_slots
    assert table.forwards.runs.any(axis=1)[0]
    assert (table.forwards.runs | table.backwards.runs).any(axis=1).all()


@settings(deadline=None, max_examples=60)
@given(**SIZES)
def test_reads_find_what_was_written(ranks, chunks, microbatches, order):
    """The program's reads and writes, played with names of arrays."""
    has_backward = order != "forward_only"
    table = tick_table(ranks, chunks, microbatches, order)
    last = ranks * chunks - 1
    inputs, residuals, gradients = (
        [[None] * slots.size for _ in range(ranks)] for slots in (table.inputs, table.residuals, table.gradients)
    )
    kept = ((inputs, table.inputs), (residuals, table.residuals), (gradients, table.gradients))
    sent, sent_back = {}, {}
    for tick in range(table.ticks):
        sent, arrived_back, sent_back = {}, sent_back, {}
        for rank in range(ranks):
            key = key_at(table.forwards, tick, rank)
            if has_backward and (slot := table.residuals.forward[tick, rank]) >= 0:
                residuals[rank][slot] = key or "nothing"
            if key:
                slot = table.inputs.forward[tick, rank]
                if key[0] == 0:
                    inputs[rank][slot] = key
                assert inputs[rank][slot] == key
                sent[(rank + 1) % ranks] = (key[0] + 1, key[1])
                if key[0] == last and order == "1f1b":
                    gradients[rank][table.gradients.forward[tick, rank]] = key
        for rank in range(ranks):  # sent when the tick began
            if (slot := table.gradients.arrival[tick, rank]) >= 0:
                gradients[rank][slot] = arrived_back[rank]
        for rank in range(ranks):
            if key := key_at(table.backwards, tick, rank):
                if key[0] == last and order == "gpipe":
                    gradients[rank][table.gradients.backward[tick, rank]] = key
                assert {buffer[rank][slots.backward[tick, rank]] for buffer, slots in kept} == {key}
                sent_back[(rank - 1) % ranks] = (key[0] - 1, key[1])
        for rank in range(ranks):  # kept at the end of the tick, for the next one
            if tick + 1 < table.ticks and (slot := table.inputs.arrival[tick + 1, rank]) >= 0:
                inputs[rank][slot] = sent[rank]


@settings(deadline=None, max_examples=60)
@given(ranks=st.integers(1, 6), chunks=st.integers(1, 3), groups=st.integers(1, 5))
def test_whole_groups_take_no_longer_and_hold_no_more_than_where_ranks_wait_for_inputs_alone(ranks, chunks, groups):
    microbatches = ranks * groups
    table = tick_table(ranks, chunks, microbatches)
    assert table.ticks == microbatches * chunks + ranks * chunks + ranks - 2
    for ops in (table.forwards, table.backwards):
        assert ops.runs.any(axis=1).sum() == microbatches * chunks + ranks - 1
    held = min(2 * (ranks - 1) + (chunks - 1) * ranks + 1, microbatches * chunks)
    is_full = held == microbatches * chunks and ranks > 1  # the first rank waits for others with all that it will hold
    assert table.residuals.size == held
    assert any(segment.lacks_slots for segment in table.segments()) == is_full
    assert table.inputs.size <= held + 1
    assert table.gradients.size <= 2


@settings(deadline=None, max_examples=60)
@given(ranks=st.integers(1, 6), chunks=st.integers(1, 3), groups=st.integers(1, 5))
def test_backwards_apart_take_the_ticks_of_forwards_and_find_all_microbatches_held(ranks, chunks, groups):
    count = ranks * groups * chunks
    table = tick_table(ranks, chunks, ranks * groups, "gpipe")
    assert table.ticks == 2 * (count + ranks - 1)
    assert table.inputs.size == count
    assert table.residuals.size == count
    forward_segments = [segment for segment in table.segments() if segment.has_forwards]
    assert [segment.lacks_slots for segment in forward_segments] == [False, *[True] * (ranks > 1)]
    assert table.gradients.size <= 1


@settings(deadline=None, max_examples=40)
@given(ranks=st.integers(1, 5), chunks=st.integers(1, 3), microbatches=st.integers(1, 11))
def test_ranks_hold_no_more_than_the_limit(ranks, chunks, microbatches):
    schedule = lockstep_order(ranks, chunks, microbatches)
    limits = lockstep_in_flight(schedule.op_graph)
    check_schedule(schedule, limits)
    table = tick_table(ranks, chunks, microbatches)
    assert table.residuals.size <= max(limits.values())


@pytest.mark.parametrize("microbatches", [1, 5])
def test_all_ranks_know_which_microbatch_enters_and_ends(microbatches):
    table = tick_table(3, 1, microbatches)
    for entries in (table.first_forwards, table.last_forwards, table.first_backwards, table.last_backwards):
        assert [number for number in entries.tolist() if number >= 0] == list(range(microbatches))
    forwards = [(segment.has_forwards, segment.has_backwards) for segment in table.segments()]
    assert forwards[0] == (True, False)
    assert forwards[-1] == (False, True)
    assert sum(segment.end - segment.start for segment in table.segments()) == table.ticks
