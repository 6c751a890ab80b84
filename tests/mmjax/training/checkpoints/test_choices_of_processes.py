"""Two processes choose the same checkpoint, or end with the same error, whichever of them sees what is wrong."""

import json
import pathlib
import zlib

import pytest

from mmjax.training.checkpoints.file_checksums import FILE_LIST, read_file_records, write_file_list
from tests.sharding.runtime.processes import run_cluster

FILES = ("a", "b", "c", "d", "e", "f")  # shared out by their checksums


def checkpoints(folder: pathlib.Path) -> pathlib.Path:
    """Checkpoints of steps 3 and 5; what their files hold does not matter."""
    for step in (3, 5):
        (folder / str(step)).mkdir(parents=True)
        for name in FILES:
            (folder / str(step) / name).write_text(name)
        write_file_list(folder / str(step))
    return folder


def damage(checkpoint: pathlib.Path) -> None:
    (checkpoint / "c").write_text("x")


def make_unreadable(checkpoint: pathlib.Path) -> None:
    """Gives it a file of size 0 that the system refuses to read."""
    (checkpoint / "c").unlink()
    (checkpoint / "c").symlink_to("/proc/self/mem")
    records = {file: list(record) for file, record in read_file_records(checkpoint).items()} | {"c": [0, 0]}
    crc32 = zlib.crc32(json.dumps(records, sort_keys=True).encode())
    (checkpoint / FILE_LIST).write_text(json.dumps({"files": records, "crc32": crc32}))


@pytest.mark.processes
def test_what_one_process_finds_all_know(tmp_path):
    shares = {zlib.crc32(name.encode()) % 2 for name in FILES}
    reader = zlib.crc32(b"c") % 2
    assert shares == {0, 1}
    whole, damaged, unreadable = (checkpoints(tmp_path / name) for name in ("whole", "damaged", "unreadable"))
    damage(damaged / "5")
    make_unreadable(unreadable / "5")
    said = run_cluster(
        "tests.mmjax.training.checkpoints.choose_as_one_of_two", (1, 1), *map(str, (whole, damaged, unreadable))
    )
    for rank, log in enumerate(said):
        first, second, third = [line for line in log.splitlines() if line.startswith(("CHOSEN", "REFUSED"))]
        assert first == "CHOSEN 5"
        by = "" if rank == reader else f" (as process {reader} reports)"
        assert second.startswith(f"CHOSEN 3 {damaged / '5'} passed over: damaged, c is not as it was written")
        assert second.endswith(by) and ("reports" in second) == bool(by)
        assert third.startswith(
            f"REFUSED UnreadableCheckpointError process {reader}: {unreadable / '5' / 'c'} cannot be"
        )
