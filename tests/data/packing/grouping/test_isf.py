import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from data.packing.grouping.isf import sample_and_filter
from data.packing.grouping.next_fit import as_columns
from tests.data.packing.grouping.draws import in_turn, sized


def printed(sizes, capacity, threshold, rounds, samples, random):
    """Algorithms 1 and 2 in plain loops, with the last group flushed."""
    accepted, rest = [], samples.tolist()
    for _ in range(rounds):
        candidates, rest = in_turn(sizes, capacity, random.permutation(rest) if rest else []), []
        for group in candidates:
            if (sizes[group].sum(axis=0) >= threshold).any():
                accepted.append(group)
            else:
                rest += group
    return accepted, rest


@given(sized(), st.integers(0, 4), st.floats(0, 1), st.integers(0, 99))
@settings(deadline=None, max_examples=40)
def test_groups_are_those_of_the_printed_passes(drawn, rounds, share, seed):
    sizes, capacity = np.rint(drawn[0]), np.rint(drawn[1]) + 1
    samples = np.flatnonzero((sizes <= capacity).all(axis=1))
    threshold = np.rint(share * capacity)
    groups, rest = sample_and_filter(
        as_columns(sizes, capacity), capacity, threshold, rounds, samples, np.random.default_rng(seed)
    )
    expected, left = printed(sizes, capacity, threshold, rounds, samples, np.random.default_rng(seed))
    assert [members.tolist() for members in groups] == expected
    assert rest.tolist() == left


def test_the_last_group_of_a_round_is_a_candidate():
    sizes = np.full((3, 1), 4.0)
    groups, rest = sample_and_filter(
        as_columns(sizes, np.array([12.0])),
        np.array([12.0]),
        np.array([12.0]),
        1,
        np.arange(3),
        np.random.default_rng(0),
    )
    assert sorted(groups[0].tolist()) == [0, 1, 2]
    assert not len(rest)
