import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from data.packing.grouping.first_fit import first_fit_decreasing
from tests.data.packing.grouping.draws import sized


@given(sized(most=30))
@settings(deadline=None, max_examples=40)
def test_each_joins_the_first_group_with_room_the_largest_first(drawn):
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
def test_it_takes_at_most_a_few_groups_more_than_the_fewest(lengths):
    """Dosa 2007: at most 11/9 of the fewest and 6/9 of a group."""
    sizes = np.array(lengths, float)[:, None]
    found = len(first_fit_decreasing(sizes, np.array([10.0]), np.arange(len(sizes))))
    fewest = next(
        count
        for count in range(1, len(lengths) + 1)
        for places in itertools.product(range(count), repeat=len(lengths))
        if (np.bincount(places, lengths, count) <= 10).all()
    )
    assert fewest <= found <= 11 / 9 * fewest + 6 / 9


def test_nothing_is_packed_into_nothing():
    assert len(first_fit_decreasing(np.zeros((0, 2)), np.ones(2), np.zeros(0, int))) == 0
