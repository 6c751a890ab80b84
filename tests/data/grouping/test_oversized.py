import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.errors import DataError
from data.grouping.oversized import exceeding, split
from data.grouping.policies import FirstFit
from tests.data.grouping.draws import sized


@settings(deadline=None, max_examples=30)
@given(sized())
def test_oversized_is_above_the_capacity_in_any_modality(drawn):
    sizes, capacity = drawn
    expected = [any(size > most for size, most in zip(row, capacity, strict=True)) for row in sizes.tolist()]
    assert exceeding(sizes, capacity).tolist() == expected


@settings(deadline=None, max_examples=30)
@given(sized(largest=40), st.integers(1, 9))
def test_pieces_fit_and_add_up_to_their_samples(drawn, most):
    sizes = np.rint(drawn[0])
    capacity = np.full(sizes.shape[1], most + 0.5)
    pieces = split(sizes, capacity)
    assert (pieces.sizes <= capacity).all()
    assert sorted(set(pieces.samples.tolist())) == list(range(len(sizes)))
    for sample, units in enumerate(sizes):
        own = pieces.samples == sample
        assert own.sum() == max(1, np.ceil(units.max() / most))
        np.testing.assert_array_equal(pieces.sizes[own].sum(axis=0), units)
        np.testing.assert_array_equal(np.cumsum(pieces.sizes[own], axis=0) - pieces.sizes[own], pieces.starts[own])
        assert (np.ptp(pieces.sizes[own], axis=0) <= 1).all()


def test_pieces_can_be_grouped_as_samples_are():
    sizes = np.array([[25.0, 4.0], [3.0, 3.0]])
    capacity = np.array([10.0, 10.0])
    pieces = split(sizes, capacity)
    groups = FirstFit(oversized="refuse")(pieces.sizes, capacity, np.random.default_rng(0))
    assert groups.are_whole(4)
    assert not len(groups.refused)
    assert sorted(pieces.samples[groups.members].tolist()) == [0, 0, 0, 1]


@pytest.mark.parametrize(
    ("sizes", "capacity", "message"),
    [
        ([[1.0, 2.0]], [3.0], "sizes of 2 modalities, capacities of 1"),
        ([[1.0]], [0.0], "it must be above 0"),
        ([[1.0]], [np.nan], "it must be above 0"),
        ([[1.0], [np.nan]], [2.0], "sample 1 has nan units of modality 0"),
        ([[1.0], [-1.0]], [2.0], "sample 1 has -1.0 units"),
        ([[1.0], [np.inf]], [2.0], "sample 1 has inf units"),
    ],
)
def test_what_is_no_size_or_capacity_is_refused(sizes, capacity, message):
    with pytest.raises(DataError, match=message):
        exceeding(np.array(sizes), np.array(capacity))


@pytest.mark.parametrize(("sizes", "capacity"), [([[1.5]], [3.0]), ([[1.0]], [0.5])])
def test_only_whole_units_can_be_split(sizes, capacity):
    with pytest.raises(DataError, match="only by whole units"):
        split(np.array(sizes), np.array(capacity))
