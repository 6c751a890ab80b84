"""Device numbers: consecutive ones are ranges, and nothing but speed depends on it."""

import json

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from sharding.plans.device_numbers import (
    as_devices,
    count_distinct,
    device_array,
    device_set,
    highest,
    lowest,
    shifted,
)
from sharding.plans.parallelism import Parallelism
from sharding.plans.plan_error import PlanError
from sharding.plans.unit_plan import UnitPlan

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
    assert not numbers or (lowest(devices), highest(devices)) == (min(numbers), max(numbers))
    assert list(shifted(devices, first)) == [first + number for number in numbers]


@given(st.lists(NUMBERS, max_size=4))
def test_devices_of_several_units_are_counted_once(parts):
    assert count_distinct([as_devices(part) for part in parts]) == len({number for part in parts for number in part})


def test_numbers_of_other_types_are_whole_numbers_then():
    for numbers in ([3, 4], np.arange(3, 5), (np.int64(3), 4)):
        assert as_devices(numbers) == range(3, 5)
    assert json.dumps(as_devices((np.int64(5), 3))) == "[5, 3]"
    for numbers in ("0-1", (0.0, 1.0), 5):
        with pytest.raises(PlanError, match=r"devices are .*; give whole numbers, such as range\(8\)"):
            as_devices(numbers)


def test_parts_of_a_unit_have_the_devices_of_a_range_where_these_are_consecutive():
    unit = UnitPlan("a", ("a",), (0, 1, 4, 5), layers=(1, 1), parallelism=Parallelism(dp=2))
    assert [unit.rank_devices(rank) for rank in (0, 1, 2)] == [range(2), range(4, 6), ()]
    replicas = UnitPlan("a", ("a",), range(8), layers=(1,), parallelism=Parallelism(dp=4, pipeline_replicas=2))
    assert replicas.stage_devices(0) == replicas.devices


@pytest.mark.parametrize("numbers", [(3, 2, 1), (0, 2, 4), (1, 1), range(0, 6, 2)])
def test_other_orders_stay_tuples(numbers):
    assert as_devices(numbers) == tuple(numbers) and np.array_equal(device_array(as_devices(numbers)), numbers)
