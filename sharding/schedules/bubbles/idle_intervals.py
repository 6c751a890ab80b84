"""When devices idle: of every class of devices, disjoint intervals in which ops are placed."""

import bisect
from collections.abc import Iterable, Sequence
from math import inf

Interval = tuple[float, float]
"""Start and end, in seconds."""

_IdleTime = tuple[float, float, int]
"""Start, end, and the number of the idle interval of a lane that they are in."""


class IdleIntervals:
    """Idle intervals of classes of devices (lanes); the first begins at minus infinity, and the last never ends.

    Args:
        busy: For every lane, its busy intervals in ascending order.
        shortest: Intervals that are shorter are dropped, as no op fits there.
        coarse: Whether only what lies before the first busy interval and after the last counts as idle.

    Attributes:
        slack: By how much an op may exceed an interval, for rounding.
    """

    def __init__(self, busy: Sequence[Sequence[Interval]], shortest: float = 0.0, coarse: bool = False) -> None:
        self.slack = 1e-12 * max((intervals[-1][1] for intervals in busy if intervals), default=0.0)
        self._shortest = max(shortest - self.slack, 0.0)
        self._starts: list[list[float]] = []
        self._ends: list[list[float]] = []
        for intervals in busy:
            outer = [(intervals[0][0], intervals[-1][1])] if coarse and intervals else intervals
            pairs = zip([-inf, *(end for _, end in outer)], [*(start for start, _ in outer), inf], strict=True)
            kept = [(start, end) for start, end in pairs if end - start >= self._shortest and end > start]
            self._starts.append([start for start, _ in kept])
            self._ends.append([end for _, end in kept])

    def copy(self, lanes: Iterable[int]) -> "IdleIntervals":
        """Returns a copy in which the intervals of some lanes may change; its other lanes must not be used."""
        new = object.__new__(IdleIntervals)
        new.slack, new._shortest = self.slack, self._shortest
        new._starts, new._ends = list(self._starts), list(self._ends)
        for lane in lanes:
            new._starts[lane], new._ends[lane] = list(self._starts[lane]), list(self._ends[lane])
        return new

    def take_latest(self, lanes: Sequence[int], seconds: float, due: float) -> Interval:
        """Takes the latest time of this length in which all these lanes idle, and that ends by `due` (finite)."""
        if len(lanes) == 1:
            return self._take(lanes, (self._latest(lanes[0], seconds, due),))
        while True:
            times = [self._latest(lane, seconds, due) for lane in lanes]
            end = min(time[1] for time in times)
            if all(time[1] == end for time in times):
                return self._take(lanes, times)
            due = end

    def _latest(self, lane: int, seconds: float, due: float) -> _IdleTime:
        starts, ends = self._starts[lane], self._ends[lane]
        position = bisect.bisect_right(starts, due) - 1
        while True:
            end = ends[position]
            if end > due:
                end = due
            if end - seconds >= starts[position] - self.slack:
                return end - seconds, end, position
            position -= 1

    def take_earliest(self, lanes: Sequence[int], seconds: float, release: float) -> Interval:
        """Takes the earliest time of this length in which all these lanes idle, from `release` on (finite)."""
        if len(lanes) == 1:
            return self._take(lanes, (self._earliest(lanes[0], seconds, release),))
        while True:
            times = [self._earliest(lane, seconds, release) for lane in lanes]
            start = max(time[0] for time in times)
            if all(time[0] == start for time in times):
                return self._take(lanes, times)
            release = start

    def _earliest(self, lane: int, seconds: float, release: float) -> _IdleTime:
        starts, ends = self._starts[lane], self._ends[lane]
        position = bisect.bisect_left(ends, release)
        while True:
            start = starts[position]
            if start < release:
                start = release
            if start + seconds <= ends[position] + self.slack:
                return start, start + seconds, position
            position += 1

    def _take(self, lanes: Sequence[int], times: Sequence[_IdleTime]) -> Interval:
        """Cuts a time out of an idle interval of each lane."""
        for lane, (start, end, position) in zip(lanes, times, strict=True):
            if end <= start:
                continue
            starts, ends = self._starts[lane], self._ends[lane]
            least = self._shortest
            before, after = start - starts[position], ends[position] - end
            if before > 0 and before >= least:
                if after > 0 and after >= least:
                    starts.insert(position + 1, end)
                    ends.insert(position, start)
                else:
                    ends[position] = start
            elif after > 0 and after >= least:
                starts[position] = end
            else:
                del starts[position], ends[position]
        return times[0][:2]

    def release(self, lanes: Iterable[int], interval: Interval) -> None:
        """Gives back a time that was occupied; joins it with the idle time beside it."""
        start, end = interval
        if end <= start:
            return
        for lane in lanes:
            starts, ends = self._starts[lane], self._ends[lane]
            position = bisect.bisect_left(starts, end)
            first = last = position
            if position < len(starts) and starts[position] <= end:
                end_joined, last = ends[position], position + 1
            else:
                end_joined = end
            if position and ends[position - 1] >= start:
                start_joined, first = starts[position - 1], position - 1
            else:
                start_joined = start
            starts[first:last], ends[first:last] = [start_joined], [end_joined]
