"""The line of work that is not a training step, by a clock of the test."""

import io
import sys

import pytest
from rich.console import Console

from mmjax.training.metrics.activity import (
    COMPILING,
    EVALUATING,
    VERIFYING,
    ActivityDisplay,
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


def test_one_item_is_named_in_the_singular():
    line = ActivityLine(clock=lambda: 0.0)
    line.show(EVALUATING, 1, None)
    assert line.text() == "evaluating 1 batch, 0:00"
    line.show(EVALUATING, 1, 1)
    assert line.text() == "evaluated 1 batch in 0:00"


def test_many_items_have_a_line_a_hundredth_and_those_of_no_known_number_the_first():
    pipe = Console(file=io.StringIO(), width=40)
    with ActivityDisplay(pipe) as display:
        for done in range(1001):
            display.show(VERIFYING, done, 1000)
        for done in range(7):
            display.show(EVALUATING, done, None)
        display.show(EVALUATING, 7, 7)
    lines = [line.partition(",")[0] for line in pipe.file.getvalue().splitlines()]
    verifying = [f"verifying {done} of 1000 layouts" for done in (0, 1, *range(10, 1000, 10))]
    assert lines == [
        *verifying,
        "verified 1000 layouts in 0:00",
        *("evaluating 0 batches", "evaluating 1 batch", "evaluated 7 batches in 0:00"),
    ]


def test_a_call_that_ends_before_the_patience_says_nothing():
    for console in (Console(file=io.StringIO(), width=40), Console(file=io.StringIO(), force_terminal=True)):
        with ActivityDisplay(console, after=3600.0) as display:
            display.show(VERIFYING, 0, 2)
            display.show(VERIFYING, 2, 2)
        display._begin()  # the timer, too late
        assert console.file.getvalue() == ""


def test_a_call_that_takes_longer_says_where_it_is_when_the_patience_ends():
    pipe = Console(file=io.StringIO(), width=40)
    with ActivityDisplay(pipe, after=3600.0) as display:
        display.show(VERIFYING, 0, 3)
        display.show(VERIFYING, 1, 3)
        display._begin()  # what the timer calls
        display.show(VERIFYING, 2, 3)
    assert [line.partition(",")[0] for line in pipe.file.getvalue().splitlines()] == [
        "verifying 1 of 3 layouts",
        "verifying 2 of 3 layouts",
    ]


def test_what_is_printed_stays_in_the_file_that_standard_output_is(monkeypatch):
    terminal, file = Console(file=io.StringIO(), force_terminal=True), io.StringIO()
    monkeypatch.setattr(sys, "stdout", file)
    with ActivityDisplay(terminal) as display:
        display.show(VERIFYING, 0, 2)
        print("an answer")
    assert file.getvalue() == "an answer\n" and "an answer" not in terminal.file.getvalue()


def test_progress_is_never_among_json():
    terminal = Console(file=io.StringIO(), force_terminal=True)
    assert progress_console(terminal, as_json=False) is terminal
    assert progress_console(terminal, as_json=True).stderr
    assert progress_console(Console(file=io.StringIO()), as_json=False).stderr
