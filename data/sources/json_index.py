"""Where the entries of a JSON array, or of JSON lines, lie in their file: an index that needs 24 bytes an entry."""

import array
import json
import pathlib
import re

import numpy as np
from jaxtyping import Int64

from data.errors import DataError

_SPACE = re.compile(r"[ \t\n\r]*")
_MARK = b"\xef\xbb\xbf"  # some editors write it before UTF-8

# Columns: offset and size in bytes, line counted from 1.
JsonIndex = Int64[np.ndarray, "n 3"]


def starts_with_json_array(path: str) -> bool:
    """Whether the file's first character that is no blank opens an array."""
    with pathlib.Path(path).open("rb") as file:
        while head := file.read(1 << 16):
            if stripped := head.removeprefix(_MARK).lstrip():
                return stripped.startswith(b"[")
    return False


def index_json_lines(path: str) -> JsonIndex:
    """Places of the lines that are not blank; none of them is parsed."""
    found, offset = array.array("q"), 0
    with pathlib.Path(path).open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.removeprefix(_MARK).strip():
                found.extend((offset, len(line), number))
            offset += len(line)
    return _as_index(found)


def index_json_array(path: str) -> JsonIndex:
    """Places of an array's entries.

    Raises:
        DataError: The file is not JSON, or not an array; names the line.
    """
    content = pathlib.Path(path).read_bytes()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}, line {line}: not UTF-8; convert or mend the file") from error
    try:
        return _as_index(_entries(text, len(_MARK) if content.startswith(_MARK) else 0))
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path}, line {error.lineno}: not a JSON array ({error.msg}, column {error.colno}); mend the file, or "
            "write it as JSON lines, of which a malformed one is skipped"
        ) from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, brackets nested as deep
        raise DataError(f"{path}: JSON beyond reason ({error}); mend the file") from error


def _entries(text: str, offset: int) -> array.array:
    """The index of an array's entries, flat; raises JSONDecodeError where there is no array."""
    found = array.array("q")
    decoder = json.JSONDecoder()
    place, line = 0, 1  # up to which `offset` counts bytes and `line` lines
    bracket = _skip(text, 0)
    _expect(text, bracket, "[")
    end = _skip(text, bracket + 1)
    while text[end : end + 1] != "]":
        if found:
            _expect(text, end, ",")
        start = _skip(text, end + 1) if found else end
        _, end = decoder.raw_decode(text, start)
        before, entry = text[place:start], text[start:end]
        offset, line = offset + len(before.encode()), line + before.count("\n")
        size = len(entry.encode())
        found.extend((offset, size, line))
        place, offset, line = end, offset + size, line + entry.count("\n")
        end = _skip(text, end)
    if _skip(text, end + 1) != len(text):
        raise json.JSONDecodeError("Something follows the array", text, end + 1)
    return found


def _skip(text: str, place: int) -> int:
    """The place after the blanks."""
    match = _SPACE.match(text, place)
    return match.end() if match else place


def _expect(text: str, place: int, character: str) -> None:
    if text[place : place + 1] != character:
        raise json.JSONDecodeError(f"Expecting {character!r}", text, place)


def _as_index(found: array.array) -> JsonIndex:
    return np.array(found, np.int64).reshape(-1, 3)
