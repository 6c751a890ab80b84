import contextlib
import gc
import logging
import resource
import shutil

import pytest

from configs.errors import UserError
from mmjax.training.checkpoints import manager
from mmjax.training.checkpoints.discovery import saved_steps
from mmjax.training.checkpoints.manager import CheckpointManager, CheckpointNotWrittenError
from tests.mmjax.training import short_runs as runs


@contextlib.contextmanager
def small_files(most: int = 40_000):
    """No file of this process can grow beyond so many bytes: writers get an error of the system, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture(scope="module")
def state():
    return runs.engine("one").initial_state()


# Orbax leaves the tasks of a save that failed on an event loop that it has closed.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_saves_that_fail_are_named_and_the_next_one_is_tried(tmp_path, state, caplog):
    engine, directory = runs.engine("one"), tmp_path / "checkpoints"
    caplog.set_level(logging.CRITICAL + 1, "absl")  # pytest keeps what is logged in a file, which may not grow either
    checkpoints = CheckpointManager(directory, runs.MODEL)
    checkpoints.save(2, engine, state, {"batches": 2})
    checkpoints.wait()
    with small_files():
        checkpoints.save(4, engine, state, {"batches": 4})
        with caplog.at_level(logging.WARNING, "mmjax"):
            checkpoints.save(6, engine, state, {"batches": 6})
        warnings = [record.message for record in caplog.records if record.name.startswith("mmjax")]
        assert len(warnings) == 1
        assert warnings[0].startswith(f"the checkpoint of step 4 was not written to {directory}: ")
        assert "File too large" in warnings[0]
        assert warnings[0].endswith("the newest there is that of step 2; the run goes on")
        with pytest.raises(CheckpointNotWrittenError, match="of step 6 was not written .*File too large.* of step 2$"):
            checkpoints.wait()
    assert saved_steps(directory) == [2]
    checkpoints.wait()
    # The same step again, now that there is room.
    checkpoints.save(6, engine, state, {"batches": 6})
    checkpoints.close()
    assert saved_steps(directory) == [2, 6]
    restored, host, step = CheckpointManager(directory, runs.MODEL).restore(engine)
    assert (host, step) == ({"batches": 6}, 6)
    runs.assert_same(*(runs.assembled(runs.local_arrays(one)) for one in (state, restored)))
    gc.collect()  # those tasks, within this test


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
