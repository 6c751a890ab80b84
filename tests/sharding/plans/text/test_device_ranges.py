"""Device numbers as text: what is written reads back, and bad text is refused without memory for what it names."""

import json
import re
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharding.plans.plan import Plan
from sharding.plans.plan_error import PlanError
from sharding.plans.text.bounds import MAX_DEVICES
from sharding.plans.text.device_ranges import device_ranges, parse_device_ranges

DEVICES = st.lists(st.integers(0, 40) | st.integers(0, MAX_DEVICES - 1), unique=True, min_size=1, max_size=30)


@given(DEVICES)
def test_any_devices_in_any_order_read_back(devices):
    assert parse_device_ranges(device_ranges(devices)) == tuple(devices)


@given(st.text(alphabet="0123456789-, xé٣", max_size=12))
def test_other_text_is_read_or_refused_in_one_line(text):
    try:
        devices = parse_device_ranges(text)
    except ValueError as error:
        assert str(error) and "\n" not in str(error)
    else:
        assert len(set(devices)) == len(devices) > 0
        assert parse_device_ranges(device_ranges(devices)) == devices


@pytest.mark.parametrize(
    ("devices", "text"),
    [
        (range(1152), "0-1151"),
        ((0, 1, 2, 3, 8, 9), "0-3,8-9"),
        ((4, 5, 0, 1), "4-5,0-1"),
        ((3, 2, 1), "3,2,1"),
        ((7,), "7"),
    ],
)
def test_ranges_keep_the_order(devices, text):
    assert device_ranges(devices) == text
    assert parse_device_ranges(text) == tuple(devices)


def test_spaces_are_allowed_between_ranges():
    assert parse_device_ranges(" 0-1, 6 ") == (0, 1, 6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it must be device numbers and ranges in order, such as 0-3,8-11"),
        ("a-b", "it must be device numbers"),
        ("0-3,", "it must be device numbers"),
        ("-1", "it must be device numbers"),
        ("0--3", "it must be device numbers"),
        ("1.5", "it must be device numbers"),
        ("0 1", "it must be device numbers"),
        ("٣", "it must be device numbers"),
        ("3-1", "the range 3-1 descends: write 1-3"),
        ("0-3,2-5", "name device 2 once"),
        ("5,0-9", "name device 5 once"),
        ("7,7", "name device 7 once"),
        ("0-999999999999", "device numbers go up to 1048575"),
        ("1048576", "device numbers go up to 1048575"),
        ("9" * 5000, "device numbers go up to 1048575"),
        ("0," * MAX_DEVICES + "0", "it may name at most 1048576 devices"),
    ],
)
def test_bad_text_says_what_must_be_changed(text, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_device_ranges(text)


@pytest.mark.parametrize(
    ("units", "message"),
    [
        (["0-999999999999"], "units[0]: devices is '0-999999999999'; device numbers go up to 1048575"),
        (["0-1048575"] * 100, "the plan's units list more than 4194304 devices together; list fewer"),
        (["1-0", "x", 3, *["0-1048575"] * 100], "the plan's units list more than 4194304 devices together"),
    ],
)
def test_a_plan_that_names_very_many_devices_is_refused_without_memory_for_them(units, message):
    text = json.dumps({"units": [{"name": "all", "modules": ["x"], "devices": devices} for devices in units]})
    tracemalloc.start()
    try:
        with pytest.raises(PlanError, match=re.escape(message)):
            Plan.from_json(text)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
