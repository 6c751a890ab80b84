"""Progress of work that is not a training step: programs compiled, batches evaluated, layouts verified.

Commands, the Python interface and evaluations show it; `progress.py` shows training steps.
"""

import contextlib
import dataclasses
import datetime
import functools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol, runtime_checkable

from rich.console import Console
from rich.live import Live
from rich.text import Text

from configs.common.console import plain_console
from mmjax.training.metrics.live_logs import log_to_current_stderr

ActivityCallback = Callable[[int, int | None], None]
"""Called with the number of items that are done and the number of all items, or None if that is not known."""


@dataclasses.dataclass(frozen=True)
class Activity:
    """The words for a kind of work: `compiling 3 of 28 programs`, then `compiled 28 programs`."""

    present: str
    past: str
    item: str
    items: str

    def counted(self, count: int | None) -> str:
        """Returns a count with its noun, such as `1 program` and `28 programs`."""
        return f"{count} {self.item if count == 1 else self.items}"


ANSWERING = Activity("answering", "answered", "request", "requests")
COLLECTING = Activity("collecting plans of", "collected plans of", "planning policy", "planning policies")
COMPARING = Activity("comparing", "compared", "planning policy", "planning policies")
COMPILING = Activity("compiling", "compiled", "program", "programs")
COMPILING_STEP = Activity("compiling and training", "trained", "step", "steps")
DRAWING = Activity("drawing", "drew", "file", "files")
EVALUATING = Activity("evaluating", "evaluated", "batch", "batches")
MEASURING = Activity("measuring", "measured", "shallow model", "shallow models")
GROUPING = Activity("grouping", "grouped", "sample", "samples")
READING = Activity("reading the sizes of", "read the sizes of", "sample", "samples")
SIMULATING = Activity("simulating", "simulated", "step", "steps")
SPEAKING = Activity("speaking", "spoke", "clip", "clips")
TIMING = Activity("timing", "timed", "step", "steps")
VERIFYING = Activity("verifying", "verified", "layout", "layouts")
WRITING = Activity("writing", "wrote", "tensor", "tensors")

PATIENCE = 2.0
"""Seconds after which a call from Python shows its progress."""

_LINES = 100
"""Largest number of lines of an activity in a file, besides the first."""


class ActivityLine:
    """The progress of the current activity, as a line of text.

    Args:
        estimate: Whether the line tells how long the rest takes at the pace so far.
        clock: Clock in seconds.
    """

    def __init__(self, estimate: bool = False, clock: Callable[[], float] = time.perf_counter) -> None:
        self._estimate, self._clock, self._begin = estimate, clock, clock()
        self._activity: Activity | None = None
        self._done, self._total, self._remark = 0, None, ""
        self._finished_in: float | None = None

    def show(self, activity: Activity, done: int, total: int | None, remark: str = "") -> None:
        """Takes the state of an activity, which ends when all items are done; the clock starts with its first.

        Args:
            activity: The kind of work.
            done: Number of items that are done.
            total: Number of all items; None if that is not known.
            remark: Result so far, shown behind the counts.
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
        """The line, such as `compiling 12 of 58 programs, 0:14`, and in the end `compiled 58 programs in 0:47`."""
        return ", ".join(filter(None, (self._state(), self._remark))) if self._activity else ""

    def _state(self) -> str:
        words = self._activity
        if words is None:
            return ""
        if self._finished_in is not None:
            return f"{words.past} {words.counted(self._total)} in {clock_time(self._finished_in)}"
        elapsed = self._clock() - self._begin
        count = words.counted(self._done) if self._total is None else f"{self._done} of {words.counted(self._total)}"
        line = f"{words.present} {count}, {clock_time(elapsed)}"
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


@runtime_checkable
class ShowsActivities(Protocol):
    """Shows the progress of work that belongs to no step."""

    def show(self, activity: Activity, done: int, total: int | None, remark: str = "") -> None:
        """Shows that `done` of `total` items are done; see `ActivityLine.show`."""


class ActivityDisplay(contextlib.AbstractContextManager["ActivityDisplay"]):
    """Shows activities with the time left: a line redrawn in a terminal, and at most a hundred lines elsewhere.

    Args:
        console: Where to show them; other text that is printed there meanwhile appears above the line.
        after: Seconds in which nothing is shown; above 0, nothing stays in a terminal at the end.
    """

    def __init__(self, console: Console, after: float = 0.0) -> None:
        self._console, self._line = console, ActivityLine(estimate=True)
        self._live = None
        if console.is_terminal:
            # Live would write what is printed to its console, which is standard error if standard output is a file.
            printed_there = sys.stdout is not None and sys.stdout.isatty()
            self._live = Live(
                self._line, console=console, refresh_per_second=4, transient=after > 0, redirect_stdout=printed_there
            )
        self._printed = -1  # hundredths of the activity that have a line
        self._is_begun = self._is_closed = False
        self._lock = threading.RLock()
        self._timer = threading.Timer(after, self._begin) if after else None

    def __enter__(self) -> "ActivityDisplay":
        if self._timer:
            self._timer.daemon = True
            self._timer.start()
        else:
            self._begin()
        return self

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._is_closed = True
        if self._timer:
            self._timer.cancel()
        if self._live and self._is_begun:
            self._live.stop()

    def show(self, activity: Activity, done: int, total: int | None, remark: str = "") -> None:
        """Shows the progress of an activity (`ActivityLine.show`)."""
        with self._lock:
            self._line.show(activity, done, total, remark)
            hundredth = (done * _LINES // total if total else 0) if done else -1
            if done in (0, total) or hundredth > self._printed:
                self._printed = hundredth
                self._print()

    def _begin(self) -> None:
        with self._lock:
            if self._is_closed:
                return
            self._is_begun = True
            log_to_current_stderr()
            if self._live:
                self._live.start()
            self._print()

    def _print(self) -> None:
        text = self._line.text()
        if self._is_begun and not self._live and text:
            self._console.print(text, highlight=False, soft_wrap=True)


@contextlib.contextmanager
def display_activity(activity: Activity, console: Console) -> Iterator[ActivityCallback]:
    """Shows one activity (`ActivityDisplay`): yields a function of the numbers of items that are done and of all.

        with display_activity(VERIFYING, console) as show:
            show(0, len(layouts))

    Args:
        activity: The kind of work.
        console: Where to show it.
    """
    with ActivityDisplay(console) as display:
        yield functools.partial(display.show, activity)


def display_call(first_process: bool = True) -> ActivityDisplay:
    """Makes a display on standard error for a call from Python that takes long; it shows nothing on other processes."""
    return ActivityDisplay(plain_console(stderr=True, quiet=not first_process), PATIENCE)


def progress_console(output: Console, as_json: bool = False) -> Console:
    """Returns the console of a command's progress: its output in a terminal; else, and with --json, standard error."""
    return output if output.is_terminal and not as_json else plain_console(stderr=True)
