"""Files that are written whole or not at all, when the disk is full or the folder may not be written to."""

import errno

import pytest

from configs.common.whole_files import append_whole, naming, write_whole
from tests.process_limits import read_only, small_files


def test_a_full_disk_leaves_the_earlier_file_and_nothing_else(tmp_path):
    path = tmp_path / "new" / "plan.json"
    write_whole(path, "earlier")
    with small_files(1_000), pytest.raises(OSError, match=r"plan\.json") as error:
        write_whole(path, "x" * 2_000)
    assert (error.value.errno, error.value.filename) == (errno.EFBIG, str(path))
    assert path.read_text() == "earlier" and [file.name for file in path.parent.iterdir()] == ["plan.json"]
    write_whole(path, "später")
    assert path.read_text(encoding="utf-8") == "später"


def test_what_a_full_disk_takes_of_a_line_is_removed(tmp_path):
    path = tmp_path / "starts.jsonl"
    append_whole(path, "first\n")
    with small_files(10), pytest.raises(OSError, match=r"starts\.jsonl"):
        append_whole(path, "the second\n")
    assert path.read_text() == "first\n"
    append_whole(path, "third\n")
    assert path.read_text() == "first\nthird\n"


def test_a_folder_that_may_not_be_written_to(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    with read_only(folder), pytest.raises(PermissionError):
        write_whole(folder / "plan.json", "x")


def test_errors_that_are_not_the_systems_keep_their_words(tmp_path):
    with pytest.raises(OSError, match=r"^in words$"), naming(tmp_path):
        raise OSError("in words")
