"""Progress of work that is not a training step: programs compiled, batches evaluated, layouts verified."""

import contextlib
import dataclasses
import datetime
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.live import Live
from rich.text import Text

from configs.console import plain_console
from mmjax.training.metrics.live_logs import log_to_current_stderr

ActivityCallback = Callable[[int, int | None], None]
"""Called with the number of items that are done and that of all, or None if that is not known."""


@dataclasses.dataclass(frozen=True)
class Activity:
    """What is done, in words: `compiling 3 of 28 programs`, then `compiled 28 programs`."""

    present: str
    past: str
    items: str


COMPARING = Activity("comparing", "compared", "planning policies")
COMPILING = Activity("compiling", "compiled", "programs")
EVALUATING = Activity("evaluating", "evaluated", "batches")
MEASURING = Activity("measuring", "measured", "shallow models")
TIMING = Activity("timing", "timed", "steps")
VERIFYING = Activity("verifying", "verified", "layouts")


class ActivityLine:
    """How far the current activity is, as a line of text.

    Args:
        estimate: Whether the line tells how long the rest takes at the pace so far.
        clock: Seconds.
    """

    def __init__(self, estimate: bool = False, clock: Callable[[], float] = time.perf_counter) -> None:
        self._estimate, self._clock, self._begin = estimate, clock, clock()
        self._activity: Activity | None = None
        self._done, self._total, self._remark = 0, None, ""
        self._finished_in: float | None = None

    def show(self, activity: Activity, done: int, total: int | None, remark: str = "") -> None:
        """Takes the state of an activity, which ends when all items are done; the clock starts with its first.

        Args:
            activity: What is done.
            done: Items that are done.
            total: All items; None if that is not known.
            remark: What was found so far.
        """
        if activity != self._activity or self._finished_in is not None:
            self._activity, self._begin, self._finished_in = activity, self._clock(), None
        self._done, self._total, self._remark = done, total, remark
        if done == total:
            self._finished_in = self._clock() - self._begin

    def hide(self) -> None:
        """Ends the activity: the line is empty."""
        self._activity = self._finished_in = None

    def text(self) -> str:
        """Such as `compiling 12 of 58 programs, 0:14`, and in the end `compiled 58 programs in 0:47`."""
        return ", ".join(filter(None, (self._state(), self._remark))) if self._activity else ""

    def _state(self) -> str:
        words = self._activity
        if words is None:
            return ""
        if self._finished_in is not None:
            return f"{words.past} {self._total} {words.items} in {clock_time(self._finished_in)}"
        elapsed = self._clock() - self._begin
        count = f"{self._done}" if self._total is None else f"{self._done} of {self._total}"
        line = f"{words.present} {count} {words.items}, {clock_time(elapsed)}"
        if self._estimate and self._done and self._total is not None:
            line += f", about {clock_time(elapsed / self._done * (self._total - self._done))} left"
        return line

    def __rich__(self) -> Text:
        """The line at this moment, so that a live display shows the time go on."""
        return Text(self.text())


def clock_time(seconds: float) -> str:
    """Minutes and seconds, `0:14`, with hours where there are some, `1:02:03`."""
    minutes, second = divmod(round(seconds), 60)
    return str(datetime.timedelta(seconds=round(seconds))) if minutes >= 60 else f"{minutes}:{second:02d}"


@contextlib.contextmanager
def display_activity(activity: Activity, console: Console) -> Iterator[ActivityCallback]:
    """Shows an activity with the time left: a line redrawn in a terminal, one line for every item elsewhere.

        with display_activity(VERIFYING, console) as show:
            show(0, len(layouts))

    Args:
        activity: What is done.
        console: Where to show it; what else is printed there meanwhile appears above the line.
    """
    line = ActivityLine(estimate=True)
    live = Live(line, console=console, refresh_per_second=4) if console.is_terminal else None
    log_to_current_stderr()

    def show(done: int, total: int | None) -> None:
        line.show(activity, done, total)
        if live is None:
            console.print(line.text(), highlight=False, soft_wrap=True)

    with live or contextlib.nullcontext():
        yield show


def progress_console(output: Console, as_json: bool) -> Console:
    """Where a command shows its progress: with its output in a terminal, else, and with --json, on standard error."""
    return output if output.is_terminal and not as_json else plain_console(stderr=True)
