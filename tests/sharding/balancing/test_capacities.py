import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharding.balancing.capacities import least_padding_capacities, needed_capacity
from sharding.balancing.dealing import DealingError, deal_items


@given(st.lists(st.integers(1, 9), max_size=12), st.integers(1, 4))
def test_items_fit_into_what_they_need(lengths, rows):
    need = needed_capacity(np.array(lengths, np.int64), rows)
    assert need >= max(lengths, default=0) and rows * need >= sum(lengths)
    deal_items(np.array(lengths, np.int64), rows, (need,))
    with pytest.raises(DealingError):
        deal_items(np.array([*lengths, rows * need + 1], np.int64), rows, (need,))


@given(st.lists(st.integers(0, 12), min_size=1, max_size=8), st.integers(1, 3))
def test_no_other_capacities_compute_less(needs, count):
    capacities = least_padding_capacities(needs, count)
    positive = [need for need in needs if need]

    def computed(capacities):
        return sum(min(capacity for capacity in capacities if capacity >= need) for need in positive)

    assert len(capacities) <= count and (not positive or max(capacities) == max(positive))
    for others in itertools.combinations(sorted({*positive}), min(count, len({*positive}))):
        if positive and max(others) == max(positive):
            assert computed(capacities) <= computed(others)


def test_capacities_are_multiples():
    assert least_padding_capacities([0, 3, 9, 10], 2, multiple=4) == (4, 12)
    assert least_padding_capacities([0, 0], 2) == ()
