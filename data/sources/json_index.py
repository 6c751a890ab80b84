"""Index of the entries of a JSON array or of JSON lines within their file, 24 bytes an entry.

`LlavaJson` reads its entries by it.
"""

import array
import json
import pathlib
import re

import numpy as np
from jaxtyping import Int64

from data.errors import DataError

_SPACE = re.compile(r"[ \t\n\r]*")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # some editors write it before UTF-8

JsonIndex = Int64[np.ndarray, "n 3"]
"""Columns: offset and size in bytes, and 1-based line."""


def starts_with_json_array(path: str) -> bool:
    """Whether the first non-blank character of a file opens an array."""
    with pathlib.Path(path).open("rb") as file:
        while head := file.read(1 << 16):
            if stripped := head.removeprefix(_BYTE_ORDER_MARK).lstrip():
                return stripped.startswith(b"[")
    return False


def index_json_lines(path: str) -> JsonIndex:
    """Index of the lines that are not blank, without parsing them."""
    index, offset = array.array("q"), 0
    with pathlib.Path(path).open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.removeprefix(_BYTE_ORDER_MARK).strip():
                index.extend((offset, len(line), number))
            offset += len(line)
    return _as_index(index)


def index_json_array(path: str) -> JsonIndex:
    """Index of the entries of an array.

    Raises:
        DataError: The file is not JSON or not an array; names the line.
    """
    content = pathlib.Path(path).read_bytes()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}, line {line}: not UTF-8; convert or repair the file") from error
    try:
        return _as_index(_entries(text, len(_BYTE_ORDER_MARK) if content.startswith(_BYTE_ORDER_MARK) else 0))
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path}, line {error.lineno}: not a JSON array ({error.msg}, column {error.colno}); repair the file, or "
            "write it as JSON lines, of which malformed ones are skipped"
        ) from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, or as many nested brackets
        raise DataError(f"{path}: JSON that cannot be parsed ({error}); repair the file") from error


def _entries(text: str, offset: int) -> array.array:
    """The flattened index of the entries of an array; raises JSONDecodeError for anything else."""
    index = array.array("q")
    decoder = json.JSONDecoder()
    position, line = 0, 1  # of the character at which `offset` counts bytes
    bracket = _skip_blanks(text, 0)
    _expect(text, bracket, "[")
    end = _skip_blanks(text, bracket + 1)
    while text[end : end + 1] != "]":
        if index:
            _expect(text, end, ",")
        start = _skip_blanks(text, end + 1) if index else end
        _, end = decoder.raw_decode(text, start)
        before, entry = text[position:start], text[start:end]
        offset, line = offset + len(before.encode()), line + before.count("\n")
        size = len(entry.encode())
        index.extend((offset, size, line))
        position, offset, line = end, offset + size, line + entry.count("\n")
        end = _skip_blanks(text, end)
    if _skip_blanks(text, end + 1) != len(text):
        raise json.JSONDecodeError("Something follows the array", text, end + 1)
    return index


def _skip_blanks(text: str, position: int) -> int:
    """The position after the blanks."""
    match = _SPACE.match(text, position)
    return match.end() if match else position


def _expect(text: str, position: int, character: str) -> None:
    if text[position : position + 1] != character:
        raise json.JSONDecodeError(f"Expecting {character!r}", text, position)


def _as_index(index: array.array) -> JsonIndex:
    return np.array(index, np.int64).reshape(-1, 3)
