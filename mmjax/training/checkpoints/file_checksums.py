"""Sizes and checksums of a checkpoint's files: written when it is saved, compared before it is used.

The checksum is CRC-32 of zlib: every change of up to 32 neighbouring bits is found, any other with a probability of
1 - 2^-32, at the speed of memory rather than of hashing (some GB/s on one core, and files are read in parallel).
"""

import concurrent.futures
import errno
import json
import os
import pathlib
import stat
import zlib
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

from configs.common.errors import STORAGE_FAILED, UserError
from configs.common.strict_json import read_json_file

FILE_LIST = "files.json"
"""File of a checkpoint with the size and checksum of every other file, by path, and a checksum of this list."""

_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG)
"""Errors of the system for a file that does not exist; other errors do not show that the file is damaged."""

_Result = TypeVar("_Result")
_THREADS = 8
_SHOWN = 100  # characters of a file's name in a message
_CHUNK = 1 << 24  # bytes that a thread reads at once


class UnreadableCheckpointError(UserError):
    """A file of a checkpoint could not be read, so whether it is whole is not known."""

    exit_code = STORAGE_FAILED


class FileRecord(NamedTuple):
    """The size of a file in bytes, and the CRC-32 of its contents."""

    size: int
    crc32: int


def write_file_list(checkpoint: pathlib.Path) -> None:
    """Writes the sizes and checksums of all files of a checkpoint."""
    files = sorted(file for file in checkpoint.rglob("*") if file.is_file())
    records = {
        file.relative_to(checkpoint).as_posix(): FileRecord(file.stat().st_size, crc32)
        for file, crc32 in zip(files, _in_parallel(file_crc32, files), strict=True)
    }
    document = {"files": records, "crc32": _list_crc32(records)}
    (checkpoint / FILE_LIST).write_text(json.dumps(document, indent=1), encoding="utf-8")


def find_damage(checkpoint: pathlib.Path, is_read: Callable[[str], bool] = lambda name: True) -> str | None:
    """Describes the damage of a checkpoint, naming the file; None if all is as it was written.

    Args:
        checkpoint: Folder of the checkpoint.
        is_read: Whether the contents of a file are compared, by its path; sizes are compared of all.

    Raises:
        UnreadableCheckpointError: The system refuses to read a file that is there: permissions, or the storage failed.
    """
    try:
        records = read_file_records(checkpoint)
    except UnreadableCheckpointError:
        raise
    except UserError as error:
        return str(error)
    for name, record in records.items():
        file = checkpoint / name
        try:
            status = os.stat(file)
        except OSError as error:
            if error.errno not in _ABSENT:
                raise unreadable_file(file, error) from error
            return f"damaged, {name[:_SHOWN]} is missing"
        if not stat.S_ISREG(status.st_mode):
            return f"damaged, {name} is no file"
        size = status.st_size
        if size != record.size:
            return f"damaged, {name} has {size} of {record.size} bytes"
    names = [name for name in records if is_read(name)]
    for name, crc32 in zip(names, _in_parallel(_crc32_or_error, [checkpoint / name for name in names]), strict=True):
        if isinstance(crc32, OSError):
            raise unreadable_file(checkpoint / name, crc32) from crc32
        if crc32 != records[name].crc32:
            return f"damaged, {name} is not as it was written (CRC-32 {crc32:08x}, written {records[name].crc32:08x})"
    return None


def read_file_records(checkpoint: pathlib.Path) -> dict[str, FileRecord]:
    """Reads the list of a checkpoint's files.

    Raises:
        UserError: The list is missing, damaged, or has a name that is no file of a checkpoint; says which.
        UnreadableCheckpointError: The system refuses to read it.
    """
    try:
        document = read_json_file(checkpoint / FILE_LIST)
        records = {name: FileRecord(*record) for name, record in document["files"].items()}
        list_is_whole = document["crc32"] == _list_crc32(records)
    except (UserError, ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error.__cause__, OSError) and error.__cause__.errno not in _ABSENT:
            raise unreadable_file(checkpoint / FILE_LIST, error.__cause__) from error
        raise UserError(f"half-written, it has no readable {FILE_LIST}") from error
    if not list_is_whole:
        raise UserError(f"damaged, {FILE_LIST} is not as it was written")
    for name in records:
        parts = pathlib.PurePosixPath(name).parts
        if not parts or name.startswith("/") or ".." in parts or "\0" in name:
            raise UserError(f"damaged, {FILE_LIST} names {name!r:.60}, which is no file of it")
    return records


def file_crc32(path: pathlib.Path) -> int:
    """CRC-32 of a file's contents."""
    crc32 = 0
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            crc32 = zlib.crc32(chunk, crc32)
    return crc32


def _crc32_or_error(path: pathlib.Path) -> int | OSError:
    try:
        return file_crc32(path)
    except OSError as error:
        return error


def unreadable_file(path: pathlib.Path, error: OSError) -> UnreadableCheckpointError:
    """The error for a file of a checkpoint that the system refuses to read."""
    return UnreadableCheckpointError(
        f"{path} cannot be read: {error.strerror}. That is no damage, so no older checkpoint is taken: let it be read, "
        "or move the checkpoint to another folder to continue without it"
    )


def _in_parallel(function: Callable[[pathlib.Path], _Result], paths: Iterable[pathlib.Path]) -> list[_Result]:
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as threads:
        return list(threads.map(function, paths))


def _list_crc32(records: dict[str, FileRecord]) -> int:
    return zlib.crc32(json.dumps(records, sort_keys=True).encode())
