import shutil

import pytest

from configs.errors import UserError
from mmjax.training.checkpoints import manager
from mmjax.training.checkpoints.discovery import saved_steps
from mmjax.training.checkpoints.manager import CheckpointManager, CheckpointNotWrittenError
from tests.mmjax.training import short_runs as runs


@pytest.fixture(scope="module")
def state():
    return runs.engine("one").initial_state()


def test_a_folder_that_cannot_be_made_is_named(tmp_path, state):
    (tmp_path / "checkpoints").write_text("in the way")
    checkpoints = CheckpointManager(tmp_path / "checkpoints", runs.MODEL)
    checkpoints.save(2, runs.engine("one"), state, {})
    with pytest.raises(CheckpointNotWrittenError, match="of step 2 was not written .*File exists"):
        checkpoints.close()


def test_checkpoints_of_every_so_many_steps_stay(tmp_path, state):
    checkpoints = CheckpointManager(tmp_path, runs.MODEL, keep=1, keep_every=4)
    for step in (2, 4, 6):
        checkpoints.save(step, runs.engine("one"), state, {})
    checkpoints.close()
    assert saved_steps(tmp_path) == [4, 6]


def test_a_half_deleted_checkpoint_is_passed_over_and_one_of_another_format_is_refused(tmp_path, state, monkeypatch):
    engine, whole = runs.engine("one"), tmp_path / "whole"
    checkpoints = CheckpointManager(whole, runs.MODEL)
    checkpoints.save(2, engine, state, {})
    monkeypatch.setattr(manager, "FORMAT", 2)
    checkpoints.save(4, engine, state, {})
    checkpoints.close()
    monkeypatch.undo()
    with pytest.raises(UserError, match=r"4 has the checkpoint format 2, and this version of mmjax reads format 1"):
        CheckpointManager(whole, runs.MODEL).restore(engine)
    for name in ("parameters", "optimizer", "host", "model", "files.json"):
        half = shutil.copytree(whole, tmp_path / f"without_{name}")
        removed = half / "4" / name
        shutil.rmtree(removed) if removed.is_dir() else removed.unlink()
        assert CheckpointManager(half, runs.MODEL).restore(engine)[2] == 2
        shutil.rmtree(half / "2")
        with pytest.raises(UserError, match="no checkpoint is whole; start anew"):
            CheckpointManager(half, runs.MODEL).restore(engine)
