"""Copies of checkpoints in a remote folder, here a plain one, and which checkpoints are kept in both."""

import json
import pathlib
import re
import shutil
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.common.errors import STORAGE_FAILED, USAGE_ERROR, UserError
from mmjax.training.checkpoints.discovery import SET_ASIDE, refuse_existing_checkpoints, saved_steps
from mmjax.training.checkpoints.file_checksums import FILE_LIST, UnreadableCheckpointError
from mmjax.training.checkpoints.manager import CheckpointManager
from mmjax.training.checkpoints.remote_folder import SET_ASIDE_LIST, RemoteFolder, RemoteNotListedError
from mmjax.training.checkpoints.retention import Retention, check_remote_folder
from mmjax.training.checkpoints.score_file import SCORE_FILE
from mmjax.training.run_files import local_workdir
from tests.mmjax.training import short_runs as runs


@given(
    st.sets(st.integers(1, 50)),
    st.dictionaries(st.integers(1, 50), st.sampled_from((0.1, 0.5, 0.9))),
    st.builds(Retention, newest=st.integers(1, 4), every=st.integers(0, 6), best=st.integers(0, 3)),
)
def test_a_checkpoint_is_kept_for_as_long_as_a_rule_keeps_it(steps, scores, retention):
    removed = set(retention.steps_to_remove(steps, scores))
    kept = steps - removed
    assert removed <= steps
    assert set(sorted(steps)[-retention.newest :]) <= kept
    if retention.every:
        assert {step for step in steps if step % retention.every == 0} <= kept
    ranked = sorted(steps & scores.keys(), key=lambda step: (scores[step], step), reverse=True)
    assert set(ranked[: retention.best]) <= kept
    rules = retention.newest + retention.best + (50 // retention.every if retention.every else 0)
    assert len(kept) <= rules


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folders of a run that saved steps 1 to 5, kept the newest and the best two, and copied each; the state."""
    local, remote = tmp_path_factory.mktemp("local"), tmp_path_factory.mktemp("remote")
    engine = runs.engine("one")
    state = engine.initial_state()
    checkpoints = CheckpointManager(
        local, runs.MODEL, Retention(newest=1, best=2), RemoteFolder(str(remote), Retention(newest=2, best=1))
    )
    for step, score in enumerate((0.2, 0.9, 0.1, 0.8, 0.3), 1):
        if step < 5:
            checkpoints.add_score(step, score)
        checkpoints.save(step, engine, state, {"batches": step})
        checkpoints.wait_for_remote()
    checkpoints.add_score(5, 0.3)  # a run evaluates after its last save
    checkpoints.wait_for_remote()
    assert checkpoints.best() == (2, 0.9)
    checkpoints.close()
    return local, remote, state


@pytest.fixture
def copies(trained, tmp_path):
    """Copies of both folders that a test may spoil."""
    return tuple(shutil.copytree(folder, tmp_path / folder.name[:5]) for folder in trained[:2])


def resumed(local: pathlib.Path, remote: pathlib.Path | None):
    checkpoints = CheckpointManager(local, runs.MODEL, remote=remote and RemoteFolder(str(remote), Retention()))
    state, host_state, step = checkpoints.restore(runs.engine("one"))
    return runs.assembled(runs.local_arrays(state)), (host_state, step), checkpoints


def contents(folder: pathlib.Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_each_folder_keeps_what_its_rules_keep_and_copies_are_exact(trained):
    local, remote, _ = trained
    assert saved_steps(local) == [2, 4, 5]
    assert saved_steps(remote) == RemoteFolder(str(remote), Retention()).steps() == [2, 4, 5]
    for step in ("2", "4", "5"):
        assert contents(local / step) == contents(remote / step)
    scores = {"accuracy": {"1": 0.2, "2": 0.9, "3": 0.1, "4": 0.8, "5": 0.3}}
    assert json.loads((local / SCORE_FILE).read_text()) == json.loads((remote / SCORE_FILE).read_text()) == scores


def test_a_new_workdir_resumes_from_the_copies_alone(copies, trained, tmp_path):
    state, host_state_and_step, checkpoints = resumed(tmp_path / "new", copies[1])
    assert host_state_and_step == ({"batches": 5}, 5)
    runs.assert_same(state, runs.assembled(runs.local_arrays(trained[2])))
    assert saved_steps(tmp_path / "new") == [5]
    assert contents(tmp_path / "new" / "5") == contents(copies[1] / "5")
    assert checkpoints.best() == (5, 0.3)  # the better ones were not fetched


def test_the_newest_whole_one_of_both_is_taken(copies, caplog):
    local, remote = copies
    shutil.rmtree(local / "2")
    (local / "5" / "host.json").write_text("{")
    (remote / "5" / FILE_LIST).unlink()
    (remote / "4" / "model.json").unlink()
    shutil.rmtree(local / "4" / "parameters")
    assert resumed(local, remote)[1] == ({"batches": 2}, 2)
    for said in (
        "5 passed over: damaged, host.json has",
        "4 passed over: damaged, parameters/",
        "step 4 of .* cannot be",
    ):
        assert re.search(said, caplog.text), said
    assert saved_steps(local) == [2, 4, 5] and not (local / SET_ASIDE).exists()


def test_a_copy_that_cannot_be_fetched_is_no_reason_to_take_an_older_checkpoint(copies):
    local, remote = copies
    shutil.rmtree(local / "5")
    (remote / "5" / "host.json").unlink()
    (remote / "5" / "host.json").symlink_to("/proc/self/mem")  # the system refuses to read it
    with pytest.raises(UnreadableCheckpointError, match=r"step 5 in .* cannot be fetched: .*Input/output error"):
        resumed(local, remote)
    assert saved_steps(local) == [2, 4]


def test_a_damaged_checkpoint_is_replaced_by_its_copy(copies):
    local, remote = copies
    (local / "5" / "host.json").write_text("{")
    assert resumed(local, remote)[1] == ({"batches": 5}, 5)
    assert contents(local / "5") == contents(remote / "5")
    assert (local / SET_ASIDE / "5" / "host.json").read_text() == "{"


def test_copies_that_a_run_does_not_continue_are_set_aside(copies, trained, caplog):
    local, remote = copies
    later = shutil.copytree(remote / "5", remote / "100")
    (later / "host.json").write_text("damaged")
    listed = (later / FILE_LIST).read_bytes()
    folder = RemoteFolder(str(remote), Retention(newest=1))
    checkpoints = CheckpointManager(local, runs.MODEL, remote=folder)
    assert checkpoints.restore(runs.engine("one"))[1:] == ({"batches": 5}, 5)
    for step in (6, 7):
        checkpoints.save(step, runs.engine("one"), trained[2], {})
        checkpoints.wait_for_remote()
        assert folder.steps() == [step]
    checkpoints.close()
    assert (later / SET_ASIDE_LIST).read_bytes() == listed and not (later / FILE_LIST).exists()
    assert f"does not continue the checkpoint of step 100 in {remote}" in caplog.text


def test_retention_leaves_the_copy_that_was_just_made(copies):
    local, remote = copies
    folder = RemoteFolder(str(remote), Retention(newest=1))
    folder.copy(local / "4", {})
    folder.wait()
    assert folder.steps() == [4, 5]


def test_a_remote_folder_that_fails_is_a_warning(copies, trained, tmp_path, caplog):
    (tmp_path / "file").write_text("in the way")
    _, host_state_and_step, checkpoints = resumed(copies[0], tmp_path / "file")
    assert host_state_and_step == ({"batches": 5}, 5)
    checkpoints.save(6, runs.engine("one"), trained[2], {})
    checkpoints.wait_for_remote()
    checkpoints.close()
    listed, copied, scores = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert listed.startswith(f"{tmp_path / 'file'} cannot be listed: ")
    assert copied.startswith(f"the checkpoint {copies[0] / '6'} is not copied to {tmp_path / 'file'}: ")
    assert copied.endswith("; the run goes on")
    assert scores.startswith(f"the scores are not copied to {tmp_path / 'file'}: ")
    with pytest.raises(RemoteNotListedError, match=r"file cannot be listed: [^\n]*$") as error:
        resumed(tmp_path / "new", tmp_path / "file")
    assert error.value.exit_code == STORAGE_FAILED  # a launcher tries again


def test_what_cannot_be_a_remote_folder_is_refused(copies, monkeypatch):
    with pytest.raises(UserError, match="remote_checkpoints is 'ftp://host/run': give a plain folder, or one of gs://"):
        check_remote_folder("ftp://host/run")
    with pytest.raises(UserError, match="already holds checkpoints, the newest of step 5; .* or choose another folder"):
        refuse_existing_checkpoints(copies[0] / "nothing", RemoteFolder(str(copies[1]), Retention()))
    with pytest.raises(UserError, match="the workdir gs://bucket/run is not a local folder: .*remote_checkpoints"):
        local_workdir("gs://bucket/run")
    monkeypatch.setitem(sys.modules, "gcsfs", None)  # as if it were not installed
    with pytest.raises(
        UserError, match=r"gs://bucket/run cannot be listed: .*; pip install 'mmjax\[remote\]' installs it$"
    ) as error:
        RemoteFolder("gs://bucket/run", Retention()).steps()
    assert error.value.exit_code == USAGE_ERROR
