import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.grouping.first_fit import first_fit
from data.grouping.next_fit import as_columns
from tests.data.grouping.draws import sized


def in_turn(sizes, capacity, bins):
    """First-fit as a plain loop."""
    groups, opened = [], [[] for _ in range(bins)]
    for sample, size in enumerate(sizes):
        room = [held for held in opened if (sizes[held].sum(axis=0) + size <= capacity).all()]
        if not room:
            fullest = max(opened, key=lambda held: (sizes[held].sum(axis=0) / capacity).max())
            groups.append(list(fullest))
            fullest.clear()
            room = [fullest]
        room[0].append(sample)
    return sorted(groups + [held for held in opened if held])


@given(sized(most=30), st.integers(1, 5))
@settings(deadline=None, max_examples=40)
def test_few_samples_are_packed_as_by_a_plain_loop(drawn, bins):
    sizes, capacity = np.rint(drawn[0]), np.rint(drawn[1]) + 1
    sizes = sizes[(sizes <= capacity).all(axis=1)]
    groups = first_fit(as_columns(sizes, capacity), capacity, np.arange(len(sizes)), bins)
    assert sorted(members.tolist() for members in groups) == in_turn(sizes, capacity, bins)


@pytest.mark.parametrize("bins", [1, 16])
def test_many_samples_are_packed_as_densely_as_in_one_stream(bins):
    random = np.random.default_rng(0)
    sizes = np.stack([random.integers(0, 3, 3_000), random.integers(20, 900, 3_000)], axis=1).astype(float)
    capacity = np.array([9.0, 4096.0])
    groups = first_fit(as_columns(sizes, capacity), capacity, np.arange(len(sizes)), bins)
    assert groups.are_whole(len(sizes))
    assert (groups.sums(sizes) <= capacity).all()
    assert len(groups) <= 1.02 * len(in_turn(sizes, capacity, bins))
