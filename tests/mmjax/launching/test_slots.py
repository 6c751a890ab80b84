"""Which slots are left out after which failures."""

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.common.errors import DEVICE_FAILED, PROCESS_LOST
from mmjax.launching.process_end import ProcessEnd, cause_of_failure
from mmjax.launching.slots import MOST_FAILURES, Slots


def test_a_slot_is_left_out_after_two_failures_in_a_row():
    slots = Slots((0, 1, 2), 2)
    once = slots.after(ProcessEnd(1, 1))
    other = once.after(ProcessEnd(2, 1))
    assert (once.used, other.used) == (slots.used, slots.used)
    without = other.after(ProcessEnd(2, 1))
    assert without.used == (0, 1)
    assert without.after(ProcessEnd(1, 1)).after(ProcessEnd(1, 1)).used == (0, 1)  # the minimum


def test_a_failed_device_check_leaves_its_slot_out_at_once_or_ends_the_run():
    without = Slots((0, 1, 2), 1).after(ProcessEnd(0, DEVICE_FAILED))
    assert without.used == (1, 2)
    assert without.after(ProcessEnd(0, DEVICE_FAILED)).used == (2,)
    assert Slots((0, 1), 2).after(ProcessEnd(0, DEVICE_FAILED)) is None


@given(st.integers(1, 6), st.data())
def test_there_are_never_fewer_slots_than_the_minimum_and_only_the_failing_ones_go(count, data):
    minimum = data.draw(st.integers(1, count))
    slots = Slots(tuple(range(count)), minimum)
    failures: list[int] = []
    for _ in range(8):
        rank = data.draw(st.integers(0, len(slots.used) - 1))
        code = data.draw(st.sampled_from([1, DEVICE_FAILED]))
        failures.append(slots.used[rank])
        remaining = slots.after(ProcessEnd(rank, code))
        if remaining is None:
            assert code == DEVICE_FAILED and len(slots.used) == minimum
            return
        gone = set(slots.used) - set(remaining.used)
        assert len(remaining.used) >= minimum and gone <= {failures[-1]}
        if gone and code != DEVICE_FAILED:
            assert failures[-MOST_FAILURES:] == [failures[-1]] * MOST_FAILURES
        slots = remaining


LOST, TERMINATED, KILLED = PROCESS_LOST, -signal.SIGTERM, -signal.SIGKILL


@pytest.mark.parametrize(
    ("first", "others", "cause"),
    [
        (ProcessEnd(2, 1), [ProcessEnd(0, TERMINATED), ProcessEnd(1, KILLED)], 2),
        (ProcessEnd(0, LOST), [ProcessEnd(1, DEVICE_FAILED), ProcessEnd(2, LOST)], 1),
        (ProcessEnd(0, LOST), [ProcessEnd(1, KILLED), ProcessEnd(2, TERMINATED)], 1),  # it was frozen
        (ProcessEnd(0, LOST), [ProcessEnd(1, KILLED), ProcessEnd(2, KILLED)], 0),  # nobody knows
        (ProcessEnd(0, LOST), [ProcessEnd(1, LOST), ProcessEnd(2, LOST)], 0),
    ],
)
def test_the_cause_of_a_failure(first, others, cause):
    assert cause_of_failure(first, others).rank == cause
