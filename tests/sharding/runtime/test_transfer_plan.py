"""Transfers: every chunk arrives once, from a device that holds it, in the fewest rounds."""

import collections
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sharding.runtime.transfer_plan import Move, Transfer, colour_edges, plan_transfer


def boxes_of(shape, parts, replicas, devices):
    """A grid of equal boxes, each on `replicas` devices; devices in the order given."""
    grid = [index for index in np.ndindex(*parts) for _ in range(replicas)]
    sizes = [extent // part for extent, part in zip(shape, parts, strict=True)]
    boxes = [tuple((i * size, (i + 1) * size) for i, size in zip(index, sizes, strict=True)) for index in grid]
    return list(zip(devices, boxes, strict=True))


@st.composite
def transfers(draw):
    ndim = draw(st.integers(0, 3))
    sides = []
    for _ in range(2):
        parts = tuple(draw(st.integers(1, 3)) for _ in range(ndim))
        replicas = draw(st.integers(1, 3))
        count = math.prod(parts) * replicas
        first = draw(st.integers(0, 4))
        sides.append((parts, replicas, draw(st.permutations(range(first, first + count)))))
    grains = [math.lcm(sides[0][0][axis], sides[1][0][axis]) for axis in range(ndim)]
    shape = tuple(grain * draw(st.integers(1, 2)) for grain in grains)
    return shape, *(boxes_of(shape, *side) for side in sides)


def inside(point, box):
    return box is not None and all(low <= at < high for at, (low, high) in zip(point, box, strict=True))


def degrees(source_or_target, transfer):
    moves = [move for moves in transfer.rounds for move in moves]
    return collections.Counter(getattr(move, source_or_target) for move in moves)


@given(transfers())
@settings(max_examples=80, deadline=None)
@example(((), [(0, ()), (1, ())], [(1, ()), (2, ())]))
@example(((1, 6), [(0, ((0, 1), (0, 6)))], [(3, ((0, 1), (0, 3))), (4, ((0, 1), (3, 6)))]))
def test_the_array_arrives_and_the_rounds_are_the_fewest(case):
    shape, source, target = case
    array = np.arange(math.prod(shape)).reshape(shape)
    cut = {"source": {}, "target": {}}
    for device, box in source:
        cut["source"][device] = array[tuple(slice(*edges) for edges in box)]
    for device, box in target:
        cut["target"][device] = np.zeros([stop - start for start, stop in box], int)
    arrivals = {device: np.zeros_like(block) for device, block in cut["target"].items()}
    transfer = plan_transfer(source, target)
    for moves in transfer.rounds:
        assert len({move.source for move in moves}) == len({move.target for move in moves}) == len(moves) > 0
        for move in moves:
            here, there = (
                tuple(slice(start, start + size) for start, size in zip(starts, transfer.chunk, strict=True))
                for starts in (move.source_start, move.target_start)
            )
            cut["target"][move.target][there] = cut["source"][move.source][here]
            arrivals[move.target][there] += 1
            first = tuple(move.start)
            assert cut["source"][move.source][move.source_start] == array[first]
    for device, box in target:
        np.testing.assert_array_equal(arrivals[device], 1)
        np.testing.assert_array_equal(cut["target"][device], array[tuple(slice(*edges) for edges in box)])
    most = max(*degrees("source", transfer).values(), *degrees("target", transfer).values())
    assert len(transfer.rounds) == most


@given(transfers())
@settings(max_examples=80, deadline=None)
def test_replicas_share_the_sending_and_what_is_there_stays(case):
    _, source, target = case
    transfer = plan_transfer(source, target)
    held = dict(source)
    sent, stays = degrees("source", transfer), collections.Counter()
    for moves in transfer.rounds:
        for move in moves:
            if inside(move.start, held.get(move.target)):
                assert move.source == move.target
                stays[move.source] += 1
    for box in set(held.values()):
        group = [device for device, device_box in source if device_box == box]
        # Nobody sends more than the least busy replica plus one, unless it only keeps what it has.
        least = min(sent[device] for device in group)
        assert all(sent[device] <= max(least + 1, stays[device]) for device in group)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=40))
@settings(deadline=None)
@example([(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (0, 2), (2, 2)])
@example([(0, 0), (1, 1), (0, 1)])
def test_edges_are_coloured_with_as_many_colours_as_the_largest_degree(edges):
    colours = colour_edges(edges)
    for side in (0, 1):
        ends = [(edge[side], colour) for edge, colour in zip(edges, colours, strict=True)]
        assert len(set(ends)) == len(edges)
    most = max(collections.Counter((side, edge[side]) for edge in edges for side in (0, 1)).values())
    assert set(colours) == set(range(most))


@pytest.mark.parametrize(
    ("rows", "sources", "targets", "rounds"), [(12, 3, 2, 3), (12, 2, 3, 3), (8, 4, 1, 4), (8, 1, 4, 4), (20, 5, 4, 5)]
)
def test_data_parallel_transfers_in_the_known_number_of_rounds(rows, sources, targets, rounds):
    source = boxes_of((rows, 7), (sources, 1), 1, range(sources))
    target = boxes_of((rows, 7), (targets, 1), 1, range(sources, sources + targets))
    transfer = plan_transfer(source, target)
    assert len(transfer.rounds) == rounds
    assert transfer.chunk == (math.gcd(rows // sources, rows // targets), 7)


def test_what_cannot_be_sent_is_refused():
    with pytest.raises(ValueError, match=r"no source holds the chunk at \(2,\), which device 1"):
        plan_transfer([(0, ((0, 2),))], [(1, ((0, 4),))])
    with pytest.raises(ValueError, match="a box is empty"):
        plan_transfer([(0, ((0, 0),))], [(1, ((0, 0),))])
    with pytest.raises(ValueError, match=r"is named twice in the target: \[1, 1\]"):
        plan_transfer([(0, ((0, 2),))], [(1, ((0, 2),)), (1, ((0, 2),))])
    with pytest.raises(ValueError, match=r"round 0: a device is the source of two chunks: \[0, 0\]"):
        Transfer((1,), ((Move(0, 1, (0,), (0,), (0,)), Move(0, 2, (0,), (0,), (0,))),))
