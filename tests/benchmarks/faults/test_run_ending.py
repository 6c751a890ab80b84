"""How a run that faults have hit ends: what does not end within its bound is a hang, a launcher that gave up counts."""

from collections.abc import Sequence

import pytest

from benchmarks.faults.execution import RunEnding, finish
from benchmarks.faults.kinds import count_failed_saves
from benchmarks.faults.launched_run import BoundExceededError

NOT_SAVED = "error: the checkpoint of step 40 was not written to run/checkpoints: No space left; there is none"


class Ended:
    """A launched run that has ended with a code, or never ends, and its output."""

    processes, last_start = 2, 0

    def __init__(self, code: int | None, *lines: str) -> None:
        self.code, self.lines = code, list(lines)

    def wait_for_end(self, seconds: float) -> int:
        if self.code is None:
            raise BoundExceededError(f"the end of the run did not happen within {seconds:g} s")
        return self.code

    def exit_code(self) -> int | None:
        return self.code

    def last_output(self) -> list[str]:
        return self.lines


class Disturbed:
    """A disturbed run whose launchers, in order, end so."""

    def __init__(self, launched: Sequence[Ended]) -> None:
        self.run, *self.following = launched

    def relaunch(self, processes: int) -> None:
        self.run, *self.following = self.following


@pytest.mark.parametrize(
    ("launched", "expected"),
    [
        ([Ended(0)], RunEnding()),
        ([Ended(1), Ended(0)], RunEnding(exit_code=1)),
        ([Ended(2, NOT_SAVED), Ended(0)], RunEnding(exit_code=2, failed_last_save=True)),
        ([Ended(2, NOT_SAVED.removeprefix("error: ")), Ended(0)], RunEnding(exit_code=2)),
        ([Ended(1, NOT_SAVED), Ended(2, NOT_SAVED)], RunEnding(exit_code=2)),
        ([Ended(2, NOT_SAVED), Ended(75)], RunEnding(exit_code=75)),
    ],
)
def test_a_launcher_that_gave_up_is_known_and_why(launched, expected):
    disturbed = Disturbed(launched)
    assert finish(disturbed) == expected
    assert not disturbed.following


@pytest.mark.parametrize("before", [[], [Ended(1)]])
def test_a_run_that_does_not_end_is_a_hang_and_not_an_exception(before):
    ending = finish(Disturbed([*before, Ended(None, "step 39/40")]))
    assert ending.hang == "the end of the run did not happen within 240 s\nstep 39/40"
    assert ending.exit_code == (1 if before else None)


def test_only_saves_after_the_disk_was_full_tell_that_it_is():
    before = f"{NOT_SAVED.replace('40', '8')}\nstep 9/40\n"
    assert count_failed_saves(before, 8) == 0
    assert count_failed_saves(before + NOT_SAVED, 8) == 1
