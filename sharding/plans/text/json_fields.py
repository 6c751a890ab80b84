"""JSON objects read into frozen dataclasses; an error names the key, its value and what it must be.

msgspec and cattrs were tried instead: msgspec ignores unknown keys of a dataclass and does not print the offending
value; cattrs takes the string "x" for a list of strings and `true` for 1. Plans, units and measured profiles are read
by `read_record`.
"""

import dataclasses
import functools
import os
import reprlib
import types
import typing
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeVar

from configs.common.errors import UserError
from configs.common.strict_json import read_bounded

T = TypeVar("T")

FROM_TEXT = "from_text"
"""Key of a field's metadata whose value is a `TextForm`."""

_NOUNS = {int: "whole number", float: "number", str: "string", bool: "boolean"}


class TextForm(NamedTuple):
    """How a field is written as a JSON string.

    Attributes:
        parse: Makes the field's value of the string; raises ValueError with what must be changed.
        example: Such a string.
    """

    parse: Callable[[str], Any]
    example: str


def read_record(document: object, record: type[T], where: str, error: type[UserError]) -> T:
    """Reads a JSON object into a dataclass, as its annotations say; nested dataclasses too.

    Fields may be numbers, strings, booleans, `Literal`s, dataclasses, and tuples and dictionaries of these, or have a
    `TextForm`. An integer serves as a float. A field that may be None is None where its key is left out: null is
    refused.

    Args:
        document: What the JSON parser returned.
        record: The dataclass.
        where: Names the object in messages, such as `the plan`.
        error: Type of the exception that is raised.
    """
    if not isinstance(document, dict):
        raise error(f"{where} must be a JSON object, not {reprlib.repr(document)}")
    hints = _field_types(record)
    for key in document:
        if key not in hints:
            raise error(f"{where} has the unknown key {reprlib.repr(key)}; known are {', '.join(hints)}")
    values: dict[str, Any] = {}
    for field in dataclasses.fields(record):  # pyright: ignore[reportArgumentType]  # a TypeVar has no dataclass bound
        if field.name in document and FROM_TEXT in field.metadata:
            values[field.name] = _read_text(document[field.name], field, where, error)
        elif field.name in document:
            values[field.name] = _read_value(document[field.name], hints[field.name], where, field.name, error)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise error(f"{where} lacks the key {field.name!r}; add it")
    try:
        return record(**values)
    except ValueError as failure:
        raise error(f"{where}: {failure}") from failure


def read_file(path: str | os.PathLike[str], parse: Callable[[bytes], T], error: type[UserError]) -> T:
    """Reads a file; errors, the parser's too, name it.

    Args:
        path: The file.
        parse: Parses its contents.
        error: Type of the exception that is raised, and that `parse` raises.
    """
    content = read_bounded(path, error)
    try:
        return parse(content)
    except error as failure:
        raise error(f"{os.fspath(path)}: {failure}") from failure


@functools.cache
def _field_types(record: type) -> dict[str, Any]:
    hints = typing.get_type_hints(record)
    return {field.name: hints[field.name] for field in dataclasses.fields(record)}


def _read_text(value: Any, field: dataclasses.Field, where: str, error: type[UserError]) -> Any:
    """The value of a field with a `TextForm`."""
    form: TextForm = field.metadata[FROM_TEXT]
    if not isinstance(value, str):
        raise error(f"{where}: {field.name} is {reprlib.repr(value)}; it must be a string such as {form.example!r}")
    try:
        return form.parse(value)
    except ValueError as failure:
        raise error(f"{where}: {field.name} is {reprlib.repr(value)}; {failure}") from failure


def _read_value(value: Any, kind: Any, where: str, name: str, error: type[UserError]) -> Any:
    """One field's value; `where` and `name` say in messages which field of which object it is."""
    kind = _present(kind)
    nested = f"{where}.{name}" if "'s " in where else f"{where}'s {name}"
    if dataclasses.is_dataclass(kind):
        return read_record(value, typing.cast(type, kind), nested, error)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple and isinstance(value, list) and dataclasses.is_dataclass(arguments[0]):
        return tuple(
            read_record(item, typing.cast(type, arguments[0]), f"{nested}[{n}]", error) for n, item in enumerate(value)
        )
    if not _fits(value, kind):
        raise error(f"{where}: {name} is {reprlib.repr(value)}; it must be {_describe(kind)}")
    return _convert(value, kind)


def _present(kind: Any) -> Any:
    """Returns the type of a field's value without None, which stands for a key that is left out."""
    if typing.get_origin(kind) in (types.UnionType, typing.Union):  # the latter of a Literal
        (kind,) = (choice for choice in typing.get_args(kind) if choice is not type(None))
    return kind


def _fits(value: Any, kind: Any) -> bool:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return isinstance(value, str) and value in arguments
    if origin is tuple:
        return isinstance(value, list) and all(_fits(item, arguments[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(_fits(item, arguments[1]) for item in value.values())
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return type(value) is kind


def _convert(value: Any, kind: Any) -> Any:
    if typing.get_origin(kind) is tuple:
        return tuple(_convert(item, typing.get_args(kind)[0]) for item in value)
    return float(value) if kind is float else value


def _describe(kind: Any) -> str:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return f"one of {', '.join(arguments)}"
    if origin is dict:
        return f"an object of {_plural(arguments[1])}"
    return f"a list of {_plural(arguments[0])}" if origin is tuple else f"a {_NOUNS[kind]}"


def _plural(kind: Any) -> str:
    if dataclasses.is_dataclass(kind):
        return "objects"
    return ", ".join(typing.get_args(kind)) if typing.get_origin(kind) is Literal else f"{_NOUNS[kind]}s"
