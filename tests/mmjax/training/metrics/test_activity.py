"""The line of work that is not a training step, by a clock of the test."""

import io

import pytest
from rich.console import Console

from mmjax.training.metrics.activity import (
    COMPILING,
    VERIFYING,
    ActivityLine,
    clock_time,
    display_activity,
    progress_console,
)


@pytest.mark.parametrize(
    ("seconds", "expected"), [(0.0, "0:00"), (14.4, "0:14"), (59.6, "1:00"), (754.0, "12:34"), (3723.0, "1:02:03")]
)
def test_clock_time(seconds, expected):
    assert clock_time(seconds) == expected


def test_the_clock_starts_with_an_activity_and_stops_when_it_is_done():
    now = [100.0]
    line = ActivityLine(estimate=True, clock=lambda: now[0])
    assert line.text() == ""
    now[0] = 500.0
    line.show(VERIFYING, 0, 4)
    assert line.text() == "verifying 0 of 4 layouts, 0:00"
    now[0] = 530.0
    line.show(VERIFYING, 1, 4)
    now[0] = 540.0
    assert line.text() == "verifying 1 of 4 layouts, 0:40, about 2:00 left"
    line.show(VERIFYING, 4, 4)
    now[0] = 900.0
    assert line.text() == "verified 4 layouts in 0:40"
    line.show(VERIFYING, 3, 4, "two are wrong")
    assert line.text() == "verifying 3 of 4 layouts, 0:00, about 0:00 left, two are wrong"
    line.show(COMPILING, 0, 28)
    assert line.text() == "compiling 0 of 28 programs, 0:00"
    line.hide()
    assert line.text() == ""


def test_without_a_terminal_every_item_has_a_line():
    pipe = Console(file=io.StringIO(), width=40)
    with display_activity(VERIFYING, pipe) as show:
        show(0, 2)
        show(1, 2)
        show(2, 2)
    assert pipe.file.getvalue().splitlines() == [
        "verifying 0 of 2 layouts, 0:00",
        "verifying 1 of 2 layouts, 0:00, about 0:00 left",
        "verified 2 layouts in 0:00",
    ]


def test_progress_is_never_among_json():
    terminal = Console(file=io.StringIO(), force_terminal=True)
    assert progress_console(terminal, as_json=False) is terminal
    assert progress_console(terminal, as_json=True).stderr
    assert progress_console(Console(file=io.StringIO()), as_json=False).stderr
