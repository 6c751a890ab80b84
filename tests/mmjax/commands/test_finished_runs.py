"""`python -m mmjax.train --resume` in the workdir of a run whose summary says that it ended."""

import io
import json
import os

import pytest
from rich.console import Console

from configs.common.errors import UserError
from mmjax.commands.train import is_finished, steps_and_seconds
from mmjax.training.checkpoints.file_checksums import FILE_LIST, UnreadableCheckpointError, write_file_list

STEPS = 6


@pytest.fixture
def workdir(tmp_path):
    """A run of 6 steps that saved those of 3 and 6; what the files of checkpoints hold does not matter here."""
    for step in (3, 6):
        checkpoint = tmp_path / "checkpoints" / str(step)
        checkpoint.mkdir(parents=True)
        (checkpoint / "host.json").write_text("{}")
        write_file_list(checkpoint)
    (tmp_path / "summary.json").write_text(json.dumps({"steps": STEPS, "stopped_by": ""}))
    return tmp_path


def finished(workdir, steps: int = STEPS) -> tuple[bool, str]:
    """Whether the run counts as finished, and what is said about it."""
    console = Console(file=io.StringIO(), width=1000)
    return is_finished(workdir, steps, console), console.file.getvalue()


def test_a_run_with_its_last_checkpoint_is_finished(workdir):
    is_done, said = finished(workdir)
    assert is_done and "is finished: 6 of 6 steps" in said
    with pytest.raises(UserError, match="TrainConfig.steps is 5, and the run in .* finished 6 steps"):
        finished(workdir, 5)
    assert finished(workdir, 7) == (False, "")


def test_a_run_whose_last_checkpoint_is_gone_goes_on(workdir):
    (workdir / "checkpoints" / "6").rename(workdir / "elsewhere")
    is_done, said = finished(workdir)
    assert not is_done and "finished 6 steps, but" in said and "has no checkpoint of that step" in said


@pytest.mark.parametrize("name", ["host.json", FILE_LIST])
def test_a_run_whose_last_checkpoint_is_damaged_goes_on(workdir, name):
    (workdir / "checkpoints" / "6" / name).write_text("[]")
    is_done, said = finished(workdir)
    assert not is_done and name in said and "continues from the newest whole checkpoint" in said


def test_a_run_whose_last_checkpoint_cannot_be_read_is_refused(workdir):
    os.unlink(workdir / "checkpoints" / "6" / FILE_LIST)
    (workdir / "checkpoints" / "6" / FILE_LIST).symlink_to("/proc/self/mem")  # the system refuses to read it
    with pytest.raises(UnreadableCheckpointError, match="cannot be read"):
        finished(workdir)


def test_a_run_that_was_continued_and_killed_after_its_summary_is_not_finished(workdir):
    (workdir / "checkpoints" / "3").rename(workdir / "checkpoints" / "9")
    is_done, said = finished(workdir)
    assert not is_done and "a later one, of step 9" in said


@pytest.mark.parametrize("summary", ["", "[]", json.dumps({"steps": STEPS, "stopped_by": "SIGTERM"})])
def test_a_run_whose_summary_tells_of_no_end_goes_on(workdir, summary):
    (workdir / "summary.json").write_text(summary)
    assert finished(workdir) == (False, "")


def test_the_seconds_of_a_resumed_run_are_those_of_its_own_steps():
    assert steps_and_seconds(20, 0, 49.6) == "20 steps in 50 s" and steps_and_seconds(1, 0, 2.0) == "1 step in 2 s"
    assert steps_and_seconds(20, 10, 49.6) == "20 steps, the last 10 in 50 s"
    assert steps_and_seconds(20, 20, 7.0) == "20 steps, none of them since the resume, which took 7 s"
