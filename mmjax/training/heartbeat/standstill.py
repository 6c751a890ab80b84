"""Detection of runs whose processes all live but make no progress.

The heartbeat of process 0 asks it when every process still gives signs of life.
"""

from collections.abc import Mapping
from typing import Literal

from mmjax.training.heartbeat.liveness import MOST_NAMED, Verdict, describe_process
from mmjax.training.heartbeat.process_status import ProcessStatus

Answer = Literal["", "dump", "end"]
_MUCH_LONGER = 10
"""A pause is unusual if it is this many times as long as the longest before it."""


class Standstill:
    """Judges pauses in which no process finishes anything: no step, program, batch or phase.

    A process that waits for another makes no progress itself, so the run stands still only when none makes any.

    Args:
        bound: Seconds without progress after which the run ends.
        least: Seconds below which no pause of training is unusual.
    """

    def __init__(self, bound: float, least: float) -> None:
        self._bound, self._least = bound, least
        self._longest = self._last = 0.0
        self._dumped = False

    def judge(self, statuses: Mapping[int, ProcessStatus]) -> Answer:
        """Chooses by the newest statuses: do nothing, dump all stacks (once in a pause), or end the run."""
        running = [status for status in statuses.values() if status.phase != "ended"]
        if all(status.phase == "idle" for status in running):
            self._last, self._dumped = 0.0, False  # the program that uses the trainer may do so for ever
            return ""
        pause = min(status.idle for status in running)
        if pause < self._last:
            self._longest, self._dumped = max(self._longest, self._last), False
        self._last = pause
        if pause > self._bound:
            return "end"
        if self._dumped or pause <= self._unusual(running):
            return ""
        self._dumped = True
        return "dump"

    def verdict(self, statuses: Mapping[int, ProcessStatus]) -> Verdict:
        """Makes the verdict that ends the run, with the current work of each process."""
        named = [describe_process(rank, status) for rank, status in sorted(statuses.items())]
        more = f", and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else ""
        reason = f"no process has made progress for {self._last:.0f} s: {', '.join(named[:MOST_NAMED])}{more}"
        return Verdict(tuple(sorted(statuses)), reason)

    def _unusual(self, running: list[ProcessStatus]) -> float:
        """Seconds above which a pause is unusual; half of the bound outside training, where phases vary in length."""
        if all(status.phase == "training" for status in running):
            return min(max(self._least, _MUCH_LONGER * self._longest), self._bound / 2)
        return self._bound / 2
