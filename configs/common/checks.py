"""Checks that configurations share: ranges, divisibility and types of fields, with errors that name the field."""

import collections.abc
import dataclasses
import functools
import inspect
import numbers
import types
import typing
from collections.abc import Callable
from typing import Any, Literal

from configs.common.errors import UserError
from configs.common.short_repr import in_one_line


def require_positive(config: object, *names: str) -> None:
    """Raises ValueError, naming the field, if one of these fields is below 1."""
    for name in names:
        value = getattr(config, name)
        if value < 1:
            raise ValueError(f"{type(config).__name__}.{name} is {value}; it must be at least 1")


def require_divides(config: object, divisor: str, name: str) -> None:
    """Raises ValueError if one field does not divide another."""
    small, large = getattr(config, divisor), getattr(config, name)
    if large % small:
        raise ValueError(f"{type(config).__name__}.{divisor} = {small} does not divide {name} = {large}")


def require_loss(config: object, name: str) -> None:
    """Raises ValueError if a field is neither None nor a loss function: something hashable to be called, no class."""
    loss = getattr(config, name)
    where = f"{type(config).__name__}.{name}"
    if isinstance(loss, type):
        raise ValueError(f"{where} is the class {loss.__name__}; give an instance of it (in gin, @{loss.__name__}())")
    if loss is not None and not callable(loss):
        raise ValueError(f"{where} is {loss!r}; give a function, or an instance of a class with __call__")
    try:
        hash(loss)
    except TypeError as error:
        raise ValueError(f"{where} is {loss!r}, which has no hash; make its class a frozen dataclass") from error


def require_one_of(config: object, name: str, known: tuple[str, ...]) -> None:
    """Raises ValueError if a field has none of the known values."""
    value = getattr(config, name)
    if value not in known:
        raise ValueError(f"{type(config).__name__}.{name} is {value!r}; choose from {', '.join(known)}")


def require_types(config: Any) -> None:
    """Raises UserError, naming the field, if a field of a dataclass has not the type of its annotation."""
    annotations = annotations_of(type(config))
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name in annotations and not conforms(value, annotations[field.name]):
            raise UserError(wrong_type(f"{type(config).__name__}.{field.name}", repr(value), annotations[field.name]))


def wrong_type(name: str, shown: str, annotation: Any) -> str:
    """The message for a parameter whose value, shown like this, has not the type of its annotation."""
    return f"{name} is {in_one_line(shown)}; it must be {describe_type(annotation)}"


@functools.cache
def annotations_of(function: Callable) -> dict[str, Any]:
    """Annotations of a function's parameters, or of a class's constructor; empty where they cannot be read."""
    try:
        return typing.get_type_hints(function.__init__ if inspect.isclass(function) else function)
    except (NameError, TypeError):  # a name that is imported for type checkers only
        return {}


def conforms(value: object, annotation: Any) -> bool:
    """Whether a value has the type of an annotation. Whole numbers are floats; booleans are no numbers.

    Items of tuples, sequences and mappings are checked too. Annotations that no class describes, such as a protocol,
    accept every value.
    """
    origin, items = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return any(conforms(value, item) for item in items)
    if origin is Literal:
        return value in items
    if annotation in (int, float):  # of NumPy too
        number = numbers.Integral if annotation is int else numbers.Real
        return isinstance(value, number) and not isinstance(value, bool)
    if annotation is None:
        return value is None
    kind = origin or annotation
    if not isinstance(kind, type) or getattr(kind, "_is_protocol", False):
        return True
    if not isinstance(value, kind) or (kind is not str and isinstance(value, str) and items):
        return kind is object
    return _items_conform(value, kind, items)


def _items_conform(value: Any, kind: type, items: tuple) -> bool:
    if kind is tuple and items and items[-1] is not Ellipsis:
        return len(value) == len(items) and all(map(conforms, value, items))
    if issubclass(kind, collections.abc.Mapping) and items:
        return all(conforms(key, items[0]) and conforms(item, items[1]) for key, item in value.items())
    if issubclass(kind, collections.abc.Sequence) and items:
        return all(conforms(item, items[0]) for item in value)
    return True


def describe_type(annotation: Any) -> str:
    """An annotation in the words of an error message."""
    words = {int: "a whole number", float: "a number", str: "text", bool: "True or False"}
    described = words.get(annotation) or inspect.formatannotation(annotation).replace("collections.abc.", "")
    return f"{described}, such as (a, b) or (a,)" if typing.get_origin(annotation) is tuple else described
