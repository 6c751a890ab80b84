"""What a terminal shows of a run, rendered by rich into text."""

import dataclasses
import io
import logging

import pytest
from rich.console import Console

from mmjax.training.metrics.activity import COMPILING, EVALUATING
from mmjax.training.metrics.progress import describe_step, make_progress, print_plan
from mmjax.training.metrics.step_report import StepReport
from mmjax.training.metrics.step_timer import StepTimes


def report(step: int, mfu: float | None = None) -> StepReport:
    times = StepTimes(steps=10, wall=2.0, data=0.1, dispatch=0.2, device=1.5)
    losses = {"language": 1.25, "image": 0.5}
    return StepReport(
        step=step,
        losses=losses,
        times=times,
        tokens_per_second=12345.0,
        padding={"vision": 0.25, "backbone": 0.1},
        mfu=mfu,
    )


def console(terminal: bool, width: int = 120) -> Console:
    # `_environ`: what the terminal of whoever runs the tests can do must not matter.
    return Console(file=io.StringIO(), force_terminal=terminal, width=width, _environ={"TERM": "xterm"})


def text(console: Console) -> str:
    return console.file.getvalue()


NUMBERS = ("language 1.2500", "image 0.5000", "12,345 tokens/s", "2.000 s/step", "vision 25%", "backbone 10%")


def test_a_terminal_gets_a_live_bar_with_every_number():
    screen = console(terminal=True)
    progress = make_progress(total=100, console=screen)
    progress.update(report(40, mfu=0.415))
    progress.close()
    for number in (*NUMBERS, "40/100", "MFU 41.5%", "0:02:00 left"):
        assert number in text(screen)
    assert "\x1b[" in text(screen), "it is redrawn in place"


def test_a_log_appears_above_the_bar_and_not_in_it(monkeypatch):
    logged = io.StringIO()
    monkeypatch.setattr("sys.stderr", logged)
    monkeypatch.setattr(logging.root, "handlers", [logging.StreamHandler()])  # keeps the file of this moment
    screen = console(terminal=True)
    progress = make_progress(total=100, console=screen)
    logging.getLogger("mmjax").warning("a remark")
    assert "a remark\n" in text(screen) and not logged.getvalue()
    progress.close()
    logging.getLogger("mmjax").warning("another")
    assert logged.getvalue() == "another\n"


def test_the_utilization_of_the_fp8_peak_says_so():
    assert "MFU 41.5% of the FP8 peak |" in describe_step(dataclasses.replace(report(40, mfu=0.415), fp8=True))
    assert "MFU 41.5% |" in describe_step(report(40, mfu=0.415))


def test_an_unknown_peak_shows_no_utilization():
    screen = console(terminal=True)
    progress = make_progress(total=100, console=screen)
    progress.update(report(40))
    progress.close()
    assert "MFU" not in text(screen)


def test_a_pipe_gets_plain_lines_an_interval_apart_and_the_last():
    pipe = console(terminal=False, width=40)
    progress = make_progress(total=47, interval=20, console=pipe)
    for step in (5, 10, 15, 20, 25, 30, 35, 40, 45, 47):
        progress.update(report(step))
    progress.close()
    lines = text(pipe).splitlines()
    assert [line.split(" | ")[0] for line in lines] == ["step 5/47", "step 25/47", "step 45/47", "step 47/47"]
    assert all(number in line for line in lines for number in NUMBERS), "no line is cut or wrapped at the width"
    assert "\x1b[" not in text(pipe)
    assert lines[-1].endswith("0:00:00 left")


@pytest.mark.parametrize("terminal", [False, True])
def test_other_processes_show_nothing(terminal):
    screen = console(terminal)
    progress = make_progress(total=10, first_process=False, console=screen)
    progress.update(report(10))
    progress.close()
    assert text(screen) == ""


def test_the_plan_is_a_table():
    screen = console(terminal=False)
    rows = [{"unit": "vision", "devices": "0-1", "dp": "2"}, {"unit": "backbone", "devices": "2-7", "dp": "3"}]
    print_plan(rows, screen)
    lines = [line.split() for line in text(screen).splitlines()]
    assert ["unit", "devices", "dp"] in lines
    assert ["vision", "0-1", "2"] in lines and ["backbone", "2-7", "3"] in lines


def test_compilation_is_shown_below_the_bar_until_the_first_steps_are():
    screen = console(terminal=True, width=80)
    progress = make_progress(total=100, console=screen)
    progress.show(COMPILING, 0, 58)
    progress.show(COMPILING, 12, 58)
    progress._live.refresh()
    assert "compiling 12 of 58 programs, 0:00" in text(screen)
    assert "0/100" in text(screen) and "-:--:-- left" in text(screen), "no time left before a step has been timed"
    progress.show(COMPILING, 58, 58)
    progress._live.refresh()
    assert "compiled 58 programs in 0:00" in text(screen)
    screen.file.truncate(0)
    progress.update(report(40))
    progress.close()
    assert "language 1.2500" in text(screen) and "compiled" not in text(screen)


def test_a_pipe_gets_a_line_when_compilation_begins_and_one_when_it_ends():
    pipe = console(terminal=False)
    progress = make_progress(total=100, console=pipe)
    for done in range(59):
        progress.show(COMPILING, done, 58)
    progress.show(EVALUATING, 0, None)
    progress.show(EVALUATING, 3, None)
    progress.show(EVALUATING, 3, 3, "20.0% right of 5 questions")
    assert text(pipe).splitlines() == [
        "compiling 0 of 58 programs, 0:00",
        "compiled 58 programs in 0:00",
        "evaluating 0 batches, 0:00",
        "evaluated 3 batches in 0:00, 20.0% right of 5 questions",
    ]
