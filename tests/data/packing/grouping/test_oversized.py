import numpy as np
import pytest
from hypothesis import given, settings

from data.errors import DataError
from data.packing.grouping.oversized import exceeds_capacity
from tests.data.packing.grouping.draws import sized


@settings(deadline=None, max_examples=30)
@given(sized())
def test_oversized_is_above_the_capacity_in_any_modality(drawn):
    sizes, capacity = drawn
    expected = [any(size > most for size, most in zip(row, capacity, strict=True)) for row in sizes.tolist()]
    assert exceeds_capacity(sizes, capacity).tolist() == expected


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
        exceeds_capacity(np.array(sizes), np.array(capacity))
