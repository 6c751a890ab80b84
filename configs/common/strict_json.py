"""JSON of unknown quality: one value that is finite, unambiguous and of a bounded size, or one error of one line.

Python's parser alone lets a key occur twice and takes NaN and Infinity, and raises four types of errors.
"""

import collections
import contextlib
import itertools
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from configs.common.errors import UserError
from configs.common.shown_text import shortened

MAX_BYTES = 1 << 26
"""Most bytes of a document, or of a line of a file with one document a line: more than any that mmjax writes."""

_LARGEST = 2**63 - 1  # the largest integer of NumPy and jax
_SHOWN = 27  # characters of a number or key in a message
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[^\s\[\]{},:"]+')
_SURROGATE = re.compile(r"\\ud[89a-f]", re.IGNORECASE)


def parse_json(text: str | bytes, where: str, error: type[UserError] = UserError, finite: bool = True) -> Any:
    """Parses JSON.

    Args:
        text: The text, or its bytes in UTF-8.
        where: Names the document in messages, such as `the plan`.
        error: Type of the exception that is raised.
        finite: Whether NaN and Infinity are refused, as JSON has neither.

    Raises:
        UserError: Of the type given; it names the fault, and its line and column if they are known.
    """
    if len(text) > MAX_BYTES:
        raise error(f"{where} is too large: {len(text)} bytes or characters, of at most {MAX_BYTES}")
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8")
        except UnicodeDecodeError as failure:
            raise error(f"{where} is not UTF-8: byte {failure.start} is 0x{text[failure.start]:02x}") from failure

    def refuse(problem: str, token: str) -> NoReturn:
        raise error(f"{where}: {_place(text, token)}: {shortened(token, _SHOWN)} {problem}")

    def whole(token: str) -> int:
        if len(token) > 20 or abs(int(token)) > _LARGEST:
            refuse(f"has {len(token.lstrip('-'))} digits; a whole number goes up to {_LARGEST}", token)
        return int(token)

    def number(token: str) -> float:
        value = float(token)
        if finite and not math.isfinite(value):
            refuse("is not a finite number", token)
        return value

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) < len(pairs):
            (twice, _), *_ = collections.Counter(key for key, _ in pairs).most_common(1)
            raise error(
                f"{where} has the key {shortened(repr(twice), _SHOWN)} more than once in one object; remove one of them"
            )
        return values

    try:
        value = json.loads(text, object_pairs_hook=members, parse_int=whole, parse_float=number, parse_constant=number)
        if _SURROGATE.search(text):  # which JSON can spell and UTF-8 cannot, unless it is half of a pair
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as failure:
        place = f"line {failure.lineno}, column {failure.colno}"
        raise error(f"{where} is not JSON: {place}: {failure.msg}") from failure
    except UnicodeEncodeError as failure:
        raise error(f"{where} has a text with half of a surrogate pair, which is no character") from failure
    except RecursionError as failure:
        raise error(f"{where} cannot be parsed: it nests lists or objects too deeply") from failure
    return value


def parse_record(text: str, where: str, types: Mapping[str, type]) -> dict[str, Any]:
    """The object of a text, which must have exactly these fields, each of exactly its type.

    Raises:
        UserError: As `parse_json`, or it is another value.
    """
    fields = parse_json(text, where)
    if not isinstance(fields, dict) or {name: type(value) for name, value in fields.items()} != dict(types):
        raise UserError(f"{where} does not have the fields {', '.join(types)}")
    return fields


def read_json_file(path: str | os.PathLike[str], error: type[UserError] = UserError) -> Any:
    """The document in a file; errors name the file.

    Raises:
        UserError: Of the type given: the file cannot be read, or as `parse_json`.
    """
    return parse_json(read_bounded(path, error), os.fspath(path), error)


def read_bounded(path: str | os.PathLike[str], error: type[UserError] = UserError) -> bytes:
    """The contents of a file of at most `MAX_BYTES`; raises UserError, of the type given, if it is not readable."""
    with _reading(path, error):
        _refuse_endless(path, error)
        with open(path, "rb") as file:
            content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise error(f"{os.fspath(path)} is too large: it has more than {MAX_BYTES} bytes")
    return content


def read_json_lines(path: str | os.PathLike[str], finite: bool = True) -> Iterator[tuple[int, Any]]:
    """Number, from 1, and document of each whole line of a file; none without the file.

    A last line without an end, as a killed writer leaves it, is not among them.

    Raises:
        UserError: As `parse_json`; it names the file and the line.
    """
    if not os.path.exists(path):
        return
    _refuse_endless(path, UserError)
    with _reading(path, UserError), open(path, "rb") as file:
        for number in itertools.count(1):
            line = file.readline(MAX_BYTES + 1)
            if not line.endswith(b"\n"):
                if len(line) > MAX_BYTES:
                    raise UserError(f"{os.fspath(path)}:{number} is too large: a line has at most {MAX_BYTES} bytes")
                return
            yield number, parse_json(line[:-1], f"{os.fspath(path)}:{number}", finite=finite)


def _refuse_endless(path: str | os.PathLike[str], error: type[UserError]) -> None:
    """Refuses a path that is neither a file nor a folder, such as a pipe, whose reading may never begin or end."""
    if not os.path.isfile(path) and os.path.exists(path) and not os.path.isdir(path):
        raise error(f"{os.fspath(path)} is not a file but a pipe or a device, which may never end; copy it to a file")


@contextlib.contextmanager
def _reading(path: str | os.PathLike[str], error: type[UserError]) -> Iterator[None]:
    """Turns an error of the file system into one of a line."""
    try:
        yield
    except OSError as failure:
        raise error(f"{os.fspath(path)} cannot be read: {failure.strerror}") from failure


def _place(text: str, token: str) -> str:
    """Line and column of the first occurrence of a token that is no string; damage may stick to its end."""
    start = next(match.start() for match in _TOKEN.finditer(text) if match[0].startswith(token))
    return f"line {text.count(chr(10), 0, start) + 1}, column {start - text.rfind(chr(10), 0, start)}"
