"""Sorting orders: those of NumPy's stable sort, for keys of every size."""

import numpy as np
import pytest

from sharding.balancing.postbalancing.array_sorting import stable_order


@pytest.mark.parametrize("largest", [0, 9, (1 << 16) - 1, 1 << 16, 1 << 40, (1 << 63) - 1])
@pytest.mark.parametrize("count", [0, 1, 1000])
def test_orders_are_those_of_a_stable_sort(largest, count):
    keys = np.random.default_rng(0).integers(0, largest, count, endpoint=True) // 3
    keys[count // 2 :] = largest
    np.testing.assert_array_equal(stable_order(keys), np.argsort(keys, kind="stable"))
