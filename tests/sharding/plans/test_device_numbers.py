"""Device numbers: consecutive ones are ranges, and nothing but speed depends on it."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from sharding.plans.device_numbers import as_devices, count_distinct, device_array, device_set, shifted

NUMBERS = st.one_of(
    st.lists(st.integers(0, 20), unique=True, max_size=6).map(tuple),
    st.tuples(st.integers(0, 20), st.integers(0, 6)).map(lambda pair: range(pair[0], sum(pair))),
)


@given(NUMBERS, st.integers(0, 5))
def test_the_numbers_stay_and_consecutive_ones_are_a_range(numbers, first):
    devices = as_devices(numbers)
    assert list(devices) == list(numbers) == device_array(devices).tolist() and device_set(devices) == set(numbers)
    is_consecutive = all(second == number + 1 for number, second in zip(numbers, numbers[1:], strict=False))
    assert isinstance(devices, range) == (is_consecutive and len(numbers) > 0)
    assert as_devices(tuple(numbers)) == devices == as_devices(devices)
    assert list(shifted(devices, first)) == [first + number for number in numbers]


@given(st.lists(NUMBERS, max_size=4))
def test_devices_of_several_units_are_counted_once(parts):
    assert count_distinct([as_devices(part) for part in parts]) == len({number for part in parts for number in part})


@pytest.mark.parametrize("numbers", [(3, 2, 1), (0, 2, 4), (1, 1), range(0, 6, 2)])
def test_other_orders_stay_tuples(numbers):
    assert as_devices(numbers) == tuple(numbers) and np.array_equal(device_array(as_devices(numbers)), numbers)
