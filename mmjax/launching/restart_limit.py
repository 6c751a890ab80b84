"""The number of restarts that a run may have within a window of time; `supervisor.py` asks before each restart."""

import collections


class RestartLimit:
    """Limits the number of restarts in any window of time.

    Args:
        count: Most restarts in a window.
        window: Seconds.
    """

    def __init__(self, count: int, window: float) -> None:
        self.count, self.window = count, window
        self._times = collections.deque[float]()

    def take(self, now: float) -> bool:
        """Whether a restart is allowed at the time `now`, in seconds of any clock; if it is, it counts."""
        while self._times and self._times[0] <= now - self.window:
            self._times.popleft()
        if len(self._times) >= self.count:
            return False
        self._times.append(now)
        return True

    @property
    def used(self) -> int:
        """Restarts within the window that ends with the last one."""
        return len(self._times)
