"""The display of a run on a terminal: the plan as a table, then a live bar, or plain lines without a terminal.

The training loop updates it with each window of steps.
"""

import datetime
from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.text import Text

from configs.common.console import plain_console
from configs.common.tables import print_table, report_table
from mmjax.training.metrics.activity import Activity, ActivityLine
from mmjax.training.metrics.live_logs import log_to_current_stderr
from mmjax.training.metrics.step_report import StepReport

_TEXT_COLUMNS = ("modules", "devices", "capacities", "layers", "recompute")
"""Headings of columns of a plan's table whose cells may take several lines."""


def print_plan(rows: Sequence[Mapping[str, object]], console: Console | None = None) -> None:
    """Prints the rows of `Plan.table()`: one row per unit, one column per key."""
    table = report_table("plan", *rows[0], texts=_TEXT_COLUMNS)
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    print_table(table, console or plain_console())


def describe_step(report: StepReport) -> str:
    """Losses, throughput, step time, MFU where it is known, and padding of each module, in one line."""
    losses = " ".join(f"{name} {value:.4f}" for name, value in report.losses.items())
    padding = " ".join(f"{name} {value:.0%}" for name, value in report.padding.items())
    mfu = [] if report.mfu is None else [f"MFU {report.mfu:.1%}{' of the FP8 peak' if report.fp8 else ''}"]
    rate = [f"{report.tokens_per_second:,.0f} tokens/s", f"{report.times.wall:.3f} s/step"]
    return " | ".join([f"loss {losses}", *rate, *mfu, f"padding {padding}"])


def estimated_time_left(report: StepReport, total: int) -> str:
    """The time that the remaining steps take at the pace of the last window, as h:mm:ss."""
    seconds = round((total - report.step) * report.times.wall)
    return str(datetime.timedelta(seconds=seconds))


@runtime_checkable
class ProgressDisplay(Protocol):
    """Displays the progress of a run."""

    def update(self, report: StepReport) -> None:
        """Shows a window of steps."""

    def show(self, activity: Activity, done: int, total: int | None, remark: str = "") -> None:
        """Shows the progress of work that belongs to no step: `done` of `total` items, or of an unknown number.

        The remark is the result so far.
        """

    def close(self) -> None:
        """Ends the display, so that other output can follow."""


class NullProgress(ProgressDisplay):
    """Shows nothing: for every process but the first."""

    def update(self, report: StepReport) -> None:
        """Does nothing."""

    def show(self, activity: Activity, done: int, total: int | None, remark: str = "") -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""


class PlainProgress(ProgressDisplay):
    """One line every `interval` steps and one for the last step: for files and pipes."""

    def __init__(self, total: int, interval: int, console: Console) -> None:
        self._total = total
        self._interval = interval
        self._console = console
        self._next_step = 0
        self._activity = ActivityLine()

    def update(self, report: StepReport) -> None:
        """Prints a line if the interval has passed."""
        if report.step < min(self._next_step, self._total):
            return
        self._next_step = report.step + self._interval
        time_left = estimated_time_left(report, self._total)
        self._print(f"step {report.step}/{self._total} | {describe_step(report)} | {time_left} left")

    def show(self, activity: Activity, done: int, total: int | None, remark: str = "") -> None:
        """Prints a line at the start and one at the end."""
        self._activity.show(activity, done, total, remark)
        if done in (0, total):
            self._print(self._activity.text())

    def _print(self, line: str) -> None:
        self._console.print(line, soft_wrap=True, highlight=False, markup=False)

    def close(self) -> None:
        """Does nothing."""


class LiveProgress(ProgressDisplay):
    """A bar with the numbers of the last steps and the current activity below it, redrawn in place."""

    def __init__(self, total: int, first_step: int, console: Console) -> None:
        time_left = TextColumn("{task.fields[left]} left")
        self._total = total
        self._bar = Bar(
            BarColumn(bar_width=None), MofNCompleteColumn(), TimeElapsedColumn(), time_left, console=console
        )
        self._task = self._bar.add_task("train", total=total, completed=first_step, left="-:--:--")
        self._numbers, self._activity = Text(), ActivityLine()
        self._live = Live(console=console, refresh_per_second=4, get_renderable=self._lines)
        log_to_current_stderr()
        self._live.start()

    def update(self, report: StepReport) -> None:
        """Redraws the bar and the numbers."""
        self._bar.update(self._task, completed=report.step, left=estimated_time_left(report, self._total))
        self._numbers = Text(describe_step(report))
        self._activity.hide()

    def show(self, activity: Activity, done: int, total: int | None, remark: str = "") -> None:
        """Redraws the line of the activity."""
        self._activity.show(activity, done, total, remark)

    def _lines(self) -> Group:
        return Group(self._bar, *(line for line in (self._numbers, Text(self._activity.text())) if line.plain))

    def close(self) -> None:
        """Ends the live display."""
        self._live.stop()


def make_progress(
    total: int, first_step: int = 0, interval: int = 10, first_process: bool = True, console: Console | None = None
) -> ProgressDisplay:
    """The progress display of this process: live in a terminal, plain lines elsewhere, nothing on other processes.

    Args:
        total: Steps of the whole run.
        first_step: Steps already done by the run that is resumed.
        interval: Steps between plain lines.
        first_process: Whether this process prints at all.
        console: Where to print; standard output by default.
    """
    console = console or plain_console()
    if not first_process:
        return NullProgress()
    return LiveProgress(total, first_step, console) if console.is_terminal else PlainProgress(total, interval, console)
