"""Records in ArrayRecord files: random access on any file system, and a format to which every source converts.

Each entry of a file is one record:

    bytes 0..3   b"MMR1"
    bytes 4..7   h, the length of the header, unsigned, little-endian
    h bytes      the header: UTF-8 JSON, {"key": "...", "turns": [{"role": "user", "parts": [part, ...]}, ...]}
    the rest     the media's bytes, one after another in the order of the parts

A part is {"text": "..."}, {"image": size, "where": "..."} or {"audio": size, "where": "..."}, the size in bytes.
"""

import contextlib
import functools
import json
import os
import pathlib
import struct
import tempfile
from collections.abc import Mapping, Sequence
from typing import SupportsIndex

import numpy as np
from array_record.python.array_record_data_source import ArrayRecordDataSource
from array_record.python.array_record_module import ArrayRecordWriter

from data.errors import BadSampleError, DataError
from data.host_faults import described_fault, retried
from data.quarantine import Quarantine
from data.records import (
    MEDIA_PARTS,
    ROLES,
    ContentPart,
    Media,
    Record,
    RecordSource,
    TextPart,
    Turn,
    check_index,
)
from data.sources.parsing import decode_utf8, parse_json, require_encodable
from data.sources.paths import find_files

_MAGIC = b"MMR1"
_PREFIX = struct.Struct("<4sI")


class ArrayRecord:
    """The records of ArrayRecord files that `write_array_record` wrote; a record is read whole, with its media.

    Attributes:
        name: Name of the source.
    """

    def __init__(self, files: str | Sequence[str], name: str = "array_record") -> None:
        """Reads the number of records.

        Args:
            files: Paths, with braces and wildcards.
            name: Name of the source.

        Raises:
            DataError: A file is missing or not an ArrayRecord, or there are no records.
        """
        self.name = name
        self._files = find_files(files)
        self._readers = [_reader(path) for path in self._files]
        self._starts = np.cumsum([0, *map(len, self._readers)], dtype=np.int64)
        if not len(self):
            raise DataError(f"{self._files[0]} and the other files have no records; check the pattern of their paths")

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, index: SupportsIndex) -> Record:
        """Reads a record; raises BadSampleError if it is damaged or of another format."""
        number = check_index(index, len(self))
        file = int(np.searchsorted(self._starts, number, "right")) - 1
        row = number - int(self._starts[file])
        where = f"{self._files[file]}[{row}]"
        try:
            content = self._readers[file][row]
        except (RuntimeError, IndexError) as error:  # the reader's errors for damaged files
            raise described_fault(where, error) or BadSampleError(where, f"it is damaged: {error}") from error
        return decode_record(where, content)


def write_array_record(path: str, records: RecordSource | Sequence[Record], quarantine: Quarantine) -> int:
    """Writes records with their media to an ArrayRecord file, which appears once it is complete.

    Args:
        path: The file; an existing one is replaced.
        records: Records in the order in which they are written.
        quarantine: Collects records that cannot be read, under the name of the source, or `path` for a sequence.

    Returns:
        Number of records written.

    Raises:
        DataError: More of the records are unreadable than the quarantine allows, or the file cannot be written.
    """
    source = records.name if isinstance(records, RecordSource) else path
    written = 0
    target = pathlib.Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, draft = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        os.close(handle)
    except OSError as error:
        raise DataError(f"{path} cannot be written ({error}); choose another path") from error
    try:
        with contextlib.closing(ArrayRecordWriter(draft, "group_size:1")) as writer:  # records are read one at a time
            for index in range(len(records)):
                key = ""
                try:
                    record = retried(functools.partial(records.__getitem__, index), f"{source}[{index}]")
                    key = record.key
                    writer.write(retried(functools.partial(encode_record, record), key))
                    written += 1
                except BadSampleError as error:
                    quarantine.add(
                        source, key or error.where, f"{error.where}: {error.reason}" if key else error.reason
                    )
                    if message := quarantine.excess():
                        raise DataError(message) from error
        pathlib.Path(draft).replace(target)
    finally:
        pathlib.Path(draft).unlink(missing_ok=True)
    return written


def encode_record(record: Record) -> bytes:
    """A record with its media in this module's format; raises BadSampleError for media that cannot be read."""
    payloads: list[bytes] = []

    def entry(part: ContentPart) -> dict[str, str | int]:
        if isinstance(part, TextPart):
            return {"text": part.text}
        payloads.append(part.media.read())
        kind = next(kind for kind, medium in MEDIA_PARTS.items() if isinstance(part, medium))
        return {kind: len(payloads[-1]), "where": part.media.where}

    turns = [{"role": turn.role, "parts": [entry(part) for part in turn.parts]} for turn in record.turns]
    header = json.dumps({"key": record.key, "turns": turns}).encode()
    return b"".join([_PREFIX.pack(_MAGIC, len(header)), header, *payloads])


def decode_record(where: str, content: bytes) -> Record:
    """The record of encoded bytes; raises BadSampleError if they are not of this module's format."""
    if len(content) < _PREFIX.size or not content.startswith(_MAGIC):
        raise BadSampleError(where, f"it is not a record: it does not begin with {_MAGIC.decode()}")
    start = _PREFIX.size + _PREFIX.unpack_from(content)[1]
    header = parse_json(where, decode_utf8(where, content[_PREFIX.size : start]))
    if not isinstance(header, Mapping) or not isinstance(header.get("key"), str):
        raise BadSampleError(where, "its header has no key")
    turns = []
    for entry in _list(where, header, "turns"):
        role = entry.get("role")
        if role not in ROLES:
            raise BadSampleError(where, f"a turn is of {role!r}; known are {', '.join(ROLES)}")
        parts: list[ContentPart] = []
        for item in _list(where, entry, "parts"):
            part, start = _part(where, item, content, start)
            parts.append(part)
        turns.append(Turn(role, tuple(parts)))
    if start != len(content):
        raise BadSampleError(where, f"its header describes {start} bytes where there are {len(content)}")
    return Record(require_encodable(where, "the key", header["key"]), tuple(turns))


def _part(where: str, item: Mapping[str, object], content: bytes, start: int) -> tuple[ContentPart, int]:
    """A content part, and the position where the bytes of the next medium begin."""
    text = item.get("text")
    if isinstance(text, str):
        return TextPart(require_encodable(where, "a text", text)), start
    for kind, medium in MEDIA_PARTS.items():
        size = item.get(kind)
        if isinstance(size, int) and 0 <= size <= len(content) - start:
            payload = Media(str(item.get("where", where)), content=content[start : start + size])
            return medium(payload), start + size
    raise BadSampleError(where, "its header has a part that is neither text nor a medium within the record")


def _list(where: str, holder: Mapping[str, object], field: str) -> list[Mapping[str, object]]:
    value = holder.get(field)
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        raise BadSampleError(where, f"its header has no list of {field}")
    return value


def _reader(path: str) -> ArrayRecordDataSource:
    """A reader that opens its file on first access; raises DataError for a file that is not an ArrayRecord."""
    try:
        return ArrayRecordDataSource([path])
    except (RuntimeError, ValueError) as error:
        raise DataError(f"{path} cannot be read as ArrayRecord ({error}); replace it") from error
