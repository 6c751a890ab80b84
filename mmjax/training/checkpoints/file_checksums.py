"""Sizes and checksums of a checkpoint's files: written when it is saved, compared before anything of it is used.

The checksum is CRC-32 of zlib: every change of up to 32 neighbouring bits is found, any other with a probability of
1 - 2^-32, at the speed of memory rather than of hashing (some GB/s on one core, and files are read in parallel).
"""

import concurrent.futures
import json
import pathlib
import zlib
from collections.abc import Callable, Iterable
from typing import NamedTuple

from configs.errors import UserError
from configs.strict_json import read_json_file

FILE_LIST = "files.json"
"""File of a checkpoint with the size and checksum of every other file, by path, and a checksum of this list."""

_THREADS = 8
_CHUNK = 1 << 24  # bytes that a thread reads at once


class FileRecord(NamedTuple):
    """What is known of a file: its size in bytes, and the CRC-32 of its contents."""

    size: int
    crc32: int


def write_file_list(checkpoint: pathlib.Path) -> None:
    """Writes the sizes and checksums of all files in the folders of a checkpoint.

    Orbax's own files beside these folders are left out: it writes them last, and nothing is read from them.
    """
    files = sorted(
        file for folder in checkpoint.iterdir() if folder.is_dir() for file in folder.rglob("*") if file.is_file()
    )
    records = {
        file.relative_to(checkpoint).as_posix(): FileRecord(file.stat().st_size, crc32)
        for file, crc32 in zip(files, _in_parallel(file_crc32, files), strict=True)
    }
    document = {"files": records, "crc32": _list_crc32(records)}
    (checkpoint / FILE_LIST).write_text(json.dumps(document, indent=1), encoding="utf-8")


def find_damage(checkpoint: pathlib.Path, is_read: Callable[[str], bool] = lambda name: True) -> str | None:
    """What is wrong with a checkpoint, naming the file; None if all is as it was written.

    Args:
        checkpoint: Folder of the checkpoint.
        is_read: Whether the contents of a file are compared, by its path; sizes are compared of all.
    """
    try:
        document = read_json_file(checkpoint / FILE_LIST)
        records = {name: FileRecord(*record) for name, record in document["files"].items()}
        list_is_whole = document["crc32"] == _list_crc32(records)
    except (UserError, ValueError, KeyError, TypeError, AttributeError):
        return f"half-written, it has no readable {FILE_LIST}"
    if not list_is_whole:
        return f"damaged, {FILE_LIST} is not as it was written"
    for name, record in records.items():
        file = checkpoint / name
        if not file.is_file():
            return f"damaged, {name} is missing"
        if file.stat().st_size != record.size:
            return f"damaged, {name} has {file.stat().st_size} of {record.size} bytes"
    names = [name for name in records if is_read(name)]
    for name, crc32 in zip(names, _in_parallel(file_crc32, [checkpoint / name for name in names]), strict=True):
        if crc32 != records[name].crc32:
            return f"damaged, {name} is not as it was written (CRC-32 {crc32:08x}, written {records[name].crc32:08x})"
    return None


def file_crc32(path: pathlib.Path) -> int:
    """CRC-32 of a file's contents."""
    crc32 = 0
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            crc32 = zlib.crc32(chunk, crc32)
    return crc32


def _in_parallel(function: Callable[[pathlib.Path], int], paths: Iterable[pathlib.Path]) -> list[int]:
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as threads:
        return list(threads.map(function, paths))


def _list_crc32(records: dict[str, FileRecord]) -> int:
    return zlib.crc32(json.dumps(records, sort_keys=True).encode())
