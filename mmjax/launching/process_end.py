"""The end of a process: in words, as an exit code, and by the last lines of its log, for `supervisor.py`."""

import collections
import dataclasses
import pathlib
import signal
from collections.abc import Sequence

from configs.common.errors import DEVICE_FAILED, PROCESS_LOST
from mmjax.launching import stopped_processes

LAST_LINES = 10
"""Number of lines that are shown of the log of a process that failed."""


@dataclasses.dataclass(frozen=True)
class ProcessEnd:
    """The end of a process.

    Attributes:
        rank: Number of the process in its run.
        status: Its exit code, or minus the number of the signal that ended it (as `subprocess.Popen.returncode`).
        was_stopped: Whether it was killed because it had been stopped (SIGSTOP) for too long.
    """

    rank: int
    status: int
    was_stopped: bool = False

    @property
    def exit_code(self) -> int:
        """The exit code as a shell reports it: 128 plus the number of a signal."""
        return self.status if self.status >= 0 else 128 - self.status

    def describe(self) -> str:
        """Describes the end in words, such as `was ended by SIGKILL` or `exited with code 1`."""
        if self.was_stopped:
            return f"was stopped (SIGSTOP) for {stopped_processes.STOPPED_SECONDS:g} s and then killed"
        if self.status >= 0:
            return f"exited with code {self.status}"
        try:
            return f"was ended by {signal.Signals(-self.status).name}"
        except ValueError:  # a real-time signal has no name
            return f"was ended by signal {-self.status}"


def cause_of_failure(first: ProcessEnd, others: Sequence[ProcessEnd]) -> ProcessEnd:
    """Returns the end of the process that made a run fail; another process may have noticed it and ended before it.

    Args:
        first: The first that failed.
        others: Ends of the others, which got SIGTERM then, and SIGKILL if that did not end them.
    """
    by_check = [end for end in (first, *others) if end.exit_code == DEVICE_FAILED]
    if by_check or first.exit_code != PROCESS_LOST:
        return (by_check or [first])[0]
    suspects = [end for end in others if end.status not in (0, PROCESS_LOST, -signal.SIGTERM)]
    return suspects[0] if len(suspects) == 1 else first


def last_lines(log: pathlib.Path) -> list[str]:
    """The last lines of a log that are not empty."""
    with log.open(encoding="utf-8", errors="replace") as lines:
        return list(collections.deque((line.rstrip() for line in lines if line.strip()), maxlen=LAST_LINES))
