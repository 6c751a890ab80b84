"""Idle intervals against slots: the latest and the earliest time in which lanes idle."""

from hypothesis import given
from hypothesis import strategies as st

from sharding.schedules.bubbles.idle_intervals import IdleIntervals

SLOTS = 24


@st.composite
def busy_slots(draw: st.DrawFn) -> list[list[bool]]:
    """Whether each of two lanes is busy in each slot, the first and the last included."""
    lanes = draw(st.lists(st.lists(st.booleans(), min_size=SLOTS, max_size=SLOTS), min_size=2, max_size=2))
    return [[True, *lane[1:-1], True] for lane in lanes]


def as_intervals(lane: list[bool]) -> list[tuple[float, float]]:
    return [(float(slot), slot + 1.0) for slot, busy in enumerate(lane) if busy]


def idle(lanes, chosen, start: int, seconds: int) -> bool:
    return not any(lanes[lane][slot] for lane in chosen for slot in range(max(start, 0), min(start + seconds, SLOTS)))


REQUESTS = st.lists(
    st.tuples(st.booleans(), st.sampled_from([(0,), (1,), (0, 1)]), st.integers(1, 4), st.integers(0, SLOTS)),
    min_size=1,
    max_size=8,
)


@given(lanes=busy_slots(), requests=REQUESTS)
def test_ops_are_placed_where_slots_say(lanes, requests):
    """Requests go on until one is placed outside the slots, beyond which these say nothing."""
    intervals = IdleIntervals([as_intervals(lane) for lane in lanes], 1.0)
    for late, chosen, seconds, at in requests:
        if late:
            expected = next(start for start in range(at - seconds, -99, -1) if idle(lanes, chosen, start, seconds))
            start, end = intervals.take_latest(chosen, float(seconds), float(at))
        else:
            expected = next(start for start in range(at, 99) if idle(lanes, chosen, start, seconds))
            start, end = intervals.take_earliest(chosen, float(seconds), float(at))
        assert (start, end) == (expected, expected + seconds)
        if start < 0 or end > SLOTS:
            return
        for lane in chosen:
            lanes[lane][int(start) : int(end)] = [True] * seconds


@given(lanes=busy_slots(), requests=REQUESTS)
def test_what_is_released_can_be_taken_again(lanes, requests):
    intervals = IdleIntervals([as_intervals(lane) for lane in lanes])
    for _, chosen, seconds, at in requests:
        taken = intervals.take_latest(chosen, float(seconds), float(at))
        intervals.release(chosen, taken)
        assert intervals.take_latest(chosen, float(seconds), taken[1]) == taken


def test_coarse_intervals_lie_outside_all_that_is_busy():
    intervals = IdleIntervals([[(2.0, 3.0), (5.0, 6.0)]], coarse=True)
    assert intervals.take_latest((0,), 1.0, 5.0) == (1.0, 2.0)
    assert intervals.take_earliest((0,), 1.0, 3.0) == (6.0, 7.0)
    assert intervals.copy([0]).take_earliest((0,), 2.0, 3.0) == (7.0, 9.0)
