"""Representations that fit a screen, for the dataclasses of configurations, plans and results."""

import dataclasses
import functools
from typing import Any

WIDTH, LINES = 100, 12
_SHOWN = 4  # items of a tuple or a mapping
_LONGEST_TEXT = 60


def short_repr(self: Any) -> str:
    """The representation of a dataclass that fits a screen: fields that differ from their defaults.

    A dataclass has it by `__repr__ = short_repr` in its body. It is one line if that has at most `WIDTH` columns; else
    a field is a line, and a tuple of dataclasses has a line for each. Omitted text is shown as `...`.
    """
    name, fields = type(self).__qualname__, shown_fields(self)
    line = f"{name}({', '.join(f'{field}={_inline(value)}' for field, value in fields.items())})"
    if len(line) <= WIDTH:
        return line
    lines = []
    for field, value in fields.items():
        if isinstance(value, tuple) and len(value) > 1 and all(map(_is_record, value)):
            lines += [f"    {field}=(", *(f"        {_inline(item)}," for item in value), "    ),"]
        else:
            lines.append(f"    {field}={_inline(value)},")
    if len(lines) > LINES - 2:
        lines = [*lines[: LINES - 3], "    ..."]
    return "\n".join([f"{name}(", *(cut(line) for line in lines), ")"])


def shown_fields(record: Any) -> dict[str, Any]:
    """The fields of a dataclass that differ from their defaults, or have none."""
    fields = {field.name: (field, getattr(record, field.name)) for field in dataclasses.fields(record) if field.repr}
    return {name: value for name, (field, value) in fields.items() if not _is_default(field, value)}


def cut(line: str) -> str:
    """A line of at most `WIDTH` columns."""
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 4]} ..."


def in_one_line(text: str) -> str:
    """A representation without the ends of its lines, for a message."""
    return " ".join(line.strip() for line in text.splitlines()) if "\n" in text else text


def _is_default(field: dataclasses.Field, value: Any) -> bool:
    default = field.default
    if field.default_factory is not dataclasses.MISSING:
        default = field.default_factory()
    same = value is default or (type(value) is type(default) and value == default)
    return same is True  # arrays compare element by element


def _is_record(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _inline(value: Any) -> str:
    """A value in one line."""
    if _is_record(value):
        fields = (f"{name}={_inline(field_value)}" for name, field_value in shown_fields(value).items())
        return f"{type(value).__qualname__}({', '.join(fields)})"
    if isinstance(value, dict):
        return "{" + _joined([f"{key!r}: {_inline(item)}" for key, item in value.items()]) + "}"
    if isinstance(value, tuple | list):
        items = _joined([_inline(item) for item in value])
        return f"[{items}]" if isinstance(value, list) else f"({items},)" if len(value) == 1 else f"({items})"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, functools.partial):
        given = [*map(_inline, value.args), *(f"{name}={_inline(item)}" for name, item in value.keywords.items())]
        return f"{_inline(value.func)}({', '.join(given)})" if given else _inline(value.func)
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype}[{', '.join(map(str, value.shape))}]"
    if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
        return value.__qualname__
    text = in_one_line(repr(value))
    return text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - 3]}..."


def _joined(items: list[str]) -> str:
    more = [f"... {len(items)} in all"] if len(items) > _SHOWN else []
    return ", ".join([*items[: _SHOWN - bool(more)], *more])
