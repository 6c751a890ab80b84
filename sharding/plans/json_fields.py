"""JSON objects read into the fields of a dataclass; a key that is unknown, missing or of another type is named."""

import dataclasses
import os
import pathlib
from collections.abc import Callable
from typing import TypeVar

from configs.errors import UserError

T = TypeVar("T")

_KINDS = {
    int: ("a whole number", lambda value: type(value) is int),
    str: ("a string", lambda value: isinstance(value, str)),
    tuple[int, ...]: (
        "a list of whole numbers",
        lambda value: isinstance(value, list) and all(type(item) is int for item in value),
    ),
    tuple[str, ...]: (
        "a list of strings",
        lambda value: isinstance(value, list) and all(isinstance(item, str) for item in value),
    ),
}


def read_fields(document: object, kind: type, where: str, error: type[UserError]) -> dict[str, object]:
    """The keys of a JSON object, checked against a dataclass's fields; lists become tuples where a tuple belongs.

    Args:
        document: What the JSON parser gave.
        kind: The dataclass. Fields of types other than numbers, strings and lists of them are passed on as they are.
        where: Names the object in messages.
        error: What is raised.
    """
    if not isinstance(document, dict):
        raise error(f"{where} must be a JSON object, not {document!r}")
    fields = {field.name: field for field in dataclasses.fields(kind)}
    for key in document:
        if key not in fields:
            raise error(f"{where} has the unknown key {key!r}; known are {', '.join(fields)}")
    read = {}
    for name, field in fields.items():
        if name not in document:
            if field.default is dataclasses.MISSING:
                raise error(f"{where} lacks the key {name!r}; add it")
            continue
        value = document[name]
        if field.type in _KINDS:
            words, fits = _KINDS[field.type]
            if not fits(value):
                raise error(f"{where}: {name} is {value!r}; it must be {words}")
            value = tuple(value) if isinstance(value, list) else value
        read[name] = value
    return read


def read_file(path: str | os.PathLike[str], what: str, parse: Callable[[str], T], error: type[UserError]) -> T:
    """What a text file holds; errors, also those of the parser, name the file.

    Args:
        path: The file.
        what: What it is, in messages.
        parse: Reads its text.
        error: What is raised, and what `parse` raises.
    """
    try:
        return parse(pathlib.Path(path).read_text(encoding="utf-8"))
    except OSError as failure:
        raise error(f"{what} {os.fspath(path)} cannot be read: {failure.strerror}") from failure
    except error as failure:
        raise error(f"{os.fspath(path)}: {failure}") from failure
