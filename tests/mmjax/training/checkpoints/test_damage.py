"""Every file of a checkpoint, changed, cut off or removed: the same state is restored, or one line names the damage."""

import json
import os
import pathlib
import shutil
import zlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from configs.common.errors import STORAGE_FAILED, UserError
from mmjax.training.checkpoints.file_checksums import FILE_LIST, UnreadableCheckpointError, read_file_records
from mmjax.training.checkpoints.json_files import HOST_FILE, MODEL_FILE
from mmjax.training.checkpoints.manager import CheckpointManager
from mmjax.training.checkpoints.score_file import SCORE_FILE, read_scores
from tests.mmjax.training import short_runs as runs


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A folder with a checkpoint of step 3, its files by name, and the state."""
    directory = tmp_path_factory.mktemp("checkpoints")
    engine = runs.engine("one")
    state = engine.initial_state()
    checkpoints = CheckpointManager(directory, runs.MODEL)
    checkpoints.save(3, engine, state, {"batches": 3})
    checkpoints.close()
    files = {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    return directory, files, runs.assembled(runs.local_arrays(state))


def restored(directory: pathlib.Path):
    return CheckpointManager(directory, runs.MODEL).restore(runs.engine("one"))


def damaged(random: st.DataObject, content: bytes) -> bytes | None:
    """Other contents of a file, or None for no file."""
    kind = random.draw(st.sampled_from(("change", "cut", "empty", "longer", "remove", "rubbish")))
    place = random.draw(st.integers(0, max(0, len(content) - 1)))
    if kind == "change":
        byte = random.draw(st.integers(1, 255)) ^ (content[place] if content else 0)
        return content[:place] + bytes([byte]) + content[place + 1 :]
    by_kind = {"cut": content[:place], "empty": b"", "longer": content + b"\0", "rubbish": random.draw(st.binary())}
    return by_kind.get(kind)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_damage_is_named_in_a_line_or_does_not_matter(checkpoint, random):
    directory, files, state = checkpoint
    name = random.draw(st.sampled_from(sorted(files)))
    content = damaged(random, files[name])
    path = directory / name
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    try:
        if content == files[name]:
            again, host_state, step = restored(directory)
            assert (host_state, step) == ({"batches": 3}, 3)
            runs.assert_same(runs.assembled(runs.local_arrays(again)), state)
        else:
            with pytest.raises(UserError) as error:
                restored(directory)
            said = str(error.value)
            assert "\n" not in said and f"{directory / '3'} passed over: " in said
            assert name.removeprefix("3/") in said or "files.json" in said
    finally:
        path.write_bytes(files[name])


def forge(directory: pathlib.Path, name: str, content: bytes) -> None:
    """Replaces a file of the checkpoint and its checksum."""
    (directory / "3" / name).write_bytes(content)
    records = {file: list(record) for file, record in read_file_records(directory / "3").items()}
    records[name] = [len(content), zlib.crc32(content)]
    crc32 = zlib.crc32(json.dumps(records, sort_keys=True).encode())
    (directory / "3" / FILE_LIST).write_text(json.dumps({"files": records, "crc32": crc32}))


HOSTILE = (b"", b"{", b"[]", b"null", b'{"format": 1}', b'{"a": 1, "a": 2}', b"[" * 100_000, b"\xff\xfe", b"9" * 5_000)


@pytest.mark.parametrize("name", [MODEL_FILE, HOST_FILE, "parameters/_METADATA", "optimizer/_METADATA"])
def test_a_file_with_a_matching_checksum_and_other_contents_is_an_error_of_a_line(checkpoint, tmp_path, name):
    for number, content in enumerate(HOSTILE):
        copy = shutil.copytree(checkpoint[0], tmp_path / str(number))
        forge(copy, name, content)
        if name == HOST_FILE and content.startswith(b'{"f'):
            continue  # an object: what it must hold, the pipeline says
        with pytest.raises(UserError) as error:
            restored(copy)
        assert "\n" not in str(error.value) and str(copy / "3") in str(error.value)


def test_a_list_that_names_files_elsewhere_is_refused(checkpoint, tmp_path):
    copy = shutil.copytree(checkpoint[0], tmp_path / "copy")
    for name in ("../../secret", "/etc/passwd", "parameters/../../x"):
        records = {name: [1, 2]}
        crc32 = zlib.crc32(json.dumps(records, sort_keys=True).encode())
        (copy / "3" / FILE_LIST).write_text(json.dumps({"files": records, "crc32": crc32}))
        with pytest.raises(UserError, match="files.json names .*, which is no file of it"):
            restored(copy)


REFUSED_BY_SYSTEM = "/proc/self/mem"
"""A file of size 0 that the system opens, and refuses to read with an I/O error, also to root."""


def with_unreadable_host_file(checkpoint: pathlib.Path) -> None:
    """Gives a checkpoint a file that is as its list says, as far as anybody can see."""
    (checkpoint / HOST_FILE).unlink()
    (checkpoint / HOST_FILE).symlink_to(REFUSED_BY_SYSTEM)
    records = {file: list(record) for file, record in read_file_records(checkpoint).items()} | {HOST_FILE: [0, 0]}
    crc32 = zlib.crc32(json.dumps(records, sort_keys=True).encode())
    (checkpoint / FILE_LIST).write_text(json.dumps({"files": records, "crc32": crc32}))


def with_unreadable_list(checkpoint: pathlib.Path) -> None:
    (checkpoint / FILE_LIST).unlink()
    (checkpoint / FILE_LIST).symlink_to(REFUSED_BY_SYSTEM)


@pytest.mark.parametrize(
    ("spoil", "name"),
    [(with_unreadable_host_file, HOST_FILE), (with_unreadable_list, FILE_LIST)],
)
def test_a_newer_checkpoint_that_cannot_be_read_is_no_reason_to_take_an_older_one(checkpoint, tmp_path, spoil, name):
    copy = shutil.copytree(checkpoint[0], tmp_path / "copy")
    newer = shutil.copytree(copy / "3", copy / "5")
    spoil(newer)
    with pytest.raises(UnreadableCheckpointError, match=f"5/{name} cannot be read: Input/output error") as error:
        restored(copy)
    assert error.value.exit_code == STORAGE_FAILED and "move the checkpoint to another folder" in str(error.value)
    newer.rename(tmp_path / "elsewhere")
    assert restored(copy)[2] == 3


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
@pytest.mark.parametrize("name", [HOST_FILE, FILE_LIST, "."])
def test_a_file_without_permission_to_read_is_named(checkpoint, tmp_path, name):
    copy = shutil.copytree(checkpoint[0], tmp_path / "copy")
    (copy / "3" / name).chmod(0)
    with pytest.raises(UnreadableCheckpointError, match="cannot be read: Permission denied"):
        restored(copy)
    (copy / "3" / name).chmod(0o700)


@pytest.mark.parametrize(("name", "reason"), [("x" * 300, "is missing"), ("parameters", "is no file")])
def test_a_list_that_names_what_can_be_no_file_is_damage(checkpoint, tmp_path, name, reason):
    copy = shutil.copytree(checkpoint[0], tmp_path / "copy")
    records = {name: [0, 0]}
    crc32 = zlib.crc32(json.dumps(records, sort_keys=True).encode())
    (copy / "3" / FILE_LIST).write_text(json.dumps({"files": records, "crc32": crc32}))
    with pytest.raises(UserError, match=f"3 passed over: damaged, {name[:100]} {reason}"):
        restored(copy)


@pytest.mark.parametrize("content", [*HOSTILE, b'{"accuracy": {"x": 1}}', b'{"accuracy": {"3": "best"}}'])
def test_scores_that_cannot_be_read_are_left_out_by_name(tmp_path, content, caplog):
    (tmp_path / SCORE_FILE).write_bytes(content)
    assert read_scores(tmp_path) == {}
    (record,) = caplog.records
    assert os.fspath(tmp_path / SCORE_FILE) in record.getMessage()
