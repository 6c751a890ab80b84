import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.packing.grouping.bin_packing import as_columns, first_fit_decreasing, next_fit
from data.packing.grouping.groups import Groups
from tests.data.packing.grouping.draws import in_turn, sized


@given(sized(most=30))
@settings(deadline=None, max_examples=40)
def test_first_fit_joins_the_first_group_with_room_largest_first(drawn):
    sizes, capacity = np.rint(drawn[0]), np.rint(drawn[1]) + 1
    sizes = sizes[(sizes <= capacity).all(axis=1)]
    expected = []
    for sample in sorted(range(len(sizes)), key=lambda number: -(sizes[number] / capacity).max()):
        room = [group for group in expected if (sizes[[*group, sample]].sum(axis=0) <= capacity).all()]
        if not room:
            expected.append(room := [])
            room = [room]
        room[0].append(sample)
    groups = first_fit_decreasing(sizes, capacity, np.arange(len(sizes)))
    assert [members.tolist() for members in groups] == expected


@given(st.lists(st.integers(1, 10), min_size=1, max_size=7))
@settings(deadline=None, max_examples=40)
def test_first_fit_needs_few_groups_more_than_the_minimum(lengths):
    """Dosa 2007: at most 11/9 of the fewest and 6/9 of a group."""
    sizes = np.array(lengths, float)[:, None]
    bins = len(first_fit_decreasing(sizes, np.array([10.0]), np.arange(len(sizes))))
    fewest = next(
        count
        for count in range(1, len(lengths) + 1)
        for places in itertools.product(range(count), repeat=len(lengths))
        if (np.bincount(places, lengths, count) <= 10).all()
    )
    assert fewest <= bins <= 11 / 9 * fewest + 6 / 9


def test_first_fit_of_no_samples():
    assert len(first_fit_decreasing(np.zeros((0, 2)), np.ones(2), np.zeros(0, int))) == 0


def check(sizes, capacity, order):
    filled = next_fit(as_columns(sizes, capacity), capacity, order)
    expected = in_turn(sizes, capacity, order)
    assert filled.lengths.tolist() == [len(group) for group in expected]
    np.testing.assert_allclose(filled.sums.T, Groups.from_lists(expected).sums(sizes), rtol=1e-12)


@given(sized(), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=40)
def test_next_fit_groups_are_those_of_a_plain_loop(drawn, random):
    sizes, capacity = drawn
    order = random.sample(range(len(sizes)), random.randint(0, len(sizes)))
    check(sizes, capacity, np.array(order, int))


@pytest.mark.parametrize(
    "draw",
    [
        lambda random: random.integers(1, 6, (50_000, 2)),  # several blocks
        lambda random: np.ones((40_000, 1), int),
        lambda random: random.integers(0, 2, (40_000, 1)) * (np.arange(40_000) > 35_000)[:, None],  # no end for long
        lambda random: random.integers(0, 2, (40_000, 1)) * (np.arange(40_000) < 5_000)[:, None],  # none at all
        lambda random: (random.random((40_000, 3)) < 0.002).astype(int),  # groups of thousands
        lambda random: np.zeros((3_000, 2), int),
    ],
)
def test_next_fit_of_many_samples_in_blocks(draw):
    sizes = draw(np.random.default_rng(0)).astype(float)
    check(sizes, np.full(sizes.shape[1], 20.0), np.random.default_rng(1).permutation(len(sizes)))
    check(sizes, np.full(sizes.shape[1], 20.0), np.arange(len(sizes)))


def test_exact_sizes_use_single_precision():
    sizes = np.array([[1.0, 2.0**23], [3.0, 0.0]])
    assert as_columns(sizes, np.array([9.0, 2.0**23])).dtype == np.float32
    for other, capacity in (
        (sizes + 0.5, [9.0, 9.0]),
        (sizes, [9.5, 9.0]),
        (sizes, [9.0, np.inf]),
        (2 * sizes, [9.0, 9.0]),
    ):
        assert as_columns(other, np.array(capacity)).dtype == np.float64
