import errno
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from configs.common.errors import STORAGE_FAILED, UserError
from mmjax.training.checkpoints import json_files
from mmjax.training.checkpoints.discovery import SET_ASIDE, UNFINISHED_MARK, saved_steps
from mmjax.training.checkpoints.manager import CheckpointManager, CheckpointNotWrittenError
from mmjax.training.checkpoints.retention import Retention
from tests.mmjax.training import short_runs as runs


@pytest.fixture(scope="module")
def state():
    return runs.engine("one").initial_state()


@pytest.mark.processes
def test_a_run_goes_on_when_saves_fail_and_ends_with_the_error_of_the_last(tmp_path):
    command = [sys.executable, "-m", "tests.mmjax.training.checkpoints.run_whose_saves_fail", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr and "Error" not in ended.stderr
    run = json.loads(ended.stdout.splitlines()[-1])
    folder = tmp_path / "checkpoints"
    full, denied = [said for said in run["warnings"] if "was not written" in said]
    assert re.fullmatch(
        rf"the checkpoint of step 2 was not written to {folder}: .*File too large.*; there is none; the run goes on",
        full,
    )
    newest = "the newest there is of step 4"
    assert re.fullmatch(
        rf"the checkpoint of step 6 was not written to {folder}: .*Permission denied.*; {newest}; the run goes on",
        denied,
    )
    assert re.fullmatch(
        rf"the checkpoint of step 8 was not written to {folder}: .*Permission denied.*; {newest}", run["error"]
    )
    assert (run["steps"], run["done"]) == ([4], 8)


def test_a_folder_that_cannot_be_made_is_named(tmp_path, state):
    (tmp_path / "checkpoints").write_text("in the way")
    checkpoints = CheckpointManager(tmp_path / "checkpoints", runs.MODEL)
    checkpoints.save(2, runs.engine("one"), state, {})
    with pytest.raises(CheckpointNotWrittenError, match="of step 2 was not written .*File exists") as error:
        checkpoints.close()
    assert error.value.exit_code == STORAGE_FAILED  # a launcher tries again


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP, errno.EIO])
def test_a_folder_that_cannot_be_written_to_disk(tmp_path, state, monkeypatch, caplog, code):
    """Some file systems have no fsync of folders; an error of the last one comes when the checkpoint is whole."""
    unfinished, fsync = set(), os.fsync

    def fsync_of_files(descriptor: int) -> None:
        path = pathlib.Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        unfinished.update(part for part in path.parts if part.endswith(UNFINISHED_MARK))
        if path == tmp_path or (path.is_dir() and code != errno.EIO):
            raise OSError(code, os.strerror(code))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync_of_files)
    for _ in range(
        3
    ):  # starts of a run that continue none of the others': what is left of one writes to no folder of another
        checkpoints = CheckpointManager(tmp_path, runs.MODEL)
        checkpoints.save(2, runs.engine("one"), state, {})
        checkpoints.close()
        assert saved_steps(tmp_path) == [2]
    assert len(unfinished) == 3
    assert sorted(path.name for path in (tmp_path / SET_ASIDE).iterdir()) == ["2", "2-2"]
    assert ("may be lost if the power fails now: [Errno 5]" in caplog.text) == (code == errno.EIO)


def test_checkpoints_of_every_so_many_steps_stay(tmp_path, state):
    checkpoints = CheckpointManager(tmp_path, runs.MODEL, Retention(newest=1, every=4))
    for step in (2, 4, 6):
        checkpoints.save(step, runs.engine("one"), state, {})
    checkpoints.close()
    assert saved_steps(tmp_path) == [4, 6]


def test_a_half_deleted_checkpoint_is_passed_over_and_one_of_another_format_is_refused(tmp_path, state, monkeypatch):
    engine, whole = runs.engine("one"), tmp_path / "whole"
    checkpoints = CheckpointManager(whole, runs.MODEL)
    checkpoints.save(2, engine, state, {})
    monkeypatch.setattr(json_files, "FORMAT", 2)
    checkpoints.save(4, engine, state, {})
    checkpoints.close()
    monkeypatch.undo()
    with pytest.raises(UserError, match=r"4 has the checkpoint format 2, and this version of mmjax reads format 1"):
        CheckpointManager(whole, runs.MODEL).restore(engine)
    for name in ("parameters", "optimizer", "host.json", "model.json", "files.json"):
        half = shutil.copytree(whole, tmp_path / f"without_{name}")
        removed = half / "4" / name
        shutil.rmtree(removed) if removed.is_dir() else removed.unlink()
        assert CheckpointManager(half, runs.MODEL).restore(engine)[2] == 2
        shutil.rmtree(half / "2")
        with pytest.raises(UserError, match="no checkpoint is whole; start anew"):
            CheckpointManager(half, runs.MODEL).restore(engine)


def test_a_run_ends_when_three_saves_in_a_row_have_failed(tmp_path, state, caplog):
    blocked = tmp_path / "checkpoints"
    blocked.write_text("in the way")
    checkpoints = CheckpointManager(blocked, runs.MODEL)

    def save(step):
        checkpoints.save(step, runs.engine("one"), state, {})

    save(1)
    save(2)
    blocked.unlink()
    save(3)  # a success in between
    checkpoints.wait()
    shutil.rmtree(blocked)
    blocked.write_text("in the way")
    for step in (4, 5, 6):
        save(step)
    with pytest.raises(
        CheckpointNotWrittenError, match="step 6 was not written .*; so ended 3 saves in a row"
    ) as error:
        save(7)
    assert error.value.exit_code == STORAGE_FAILED
    assert re.findall(r"step (\d) was not .*the run goes on", caplog.text) == ["1", "2", "4", "5"]
    checkpoints.close()
