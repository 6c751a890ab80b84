"""Types and shapes of arguments and results, checked at run time in every function of the project."""

import dataclasses
import functools
import inspect
import typing
from collections.abc import Iterator, Sequence
from typing import Any

import beartype
import jaxtyping

_jaxtyped = jaxtyping.jaxtyped
# Not random: beartype would choose the checked item of a sequence with Python's global generator, and threads that do
# so while hypothesis draws an example make its tests fail now and then.
_beartyped = beartype.beartype(conf=beartype.BeartypeConf(violation_type=jaxtyping.TypeCheckError, is_random=False))
_UNKNOWN = "{"
"""What a dimension has in it that is computed from the values of arguments."""


def check_types(packages: Sequence[str]) -> None:
    """Checks the functions and dataclasses of packages that are imported from now on.

    What `jaxtyping` puts around a function binds the arguments of every call and checks them twice, with and without
    the result. Planning calls millions of functions, and would take five times as long: beartype alone checks those
    without arrays, and those with arrays once, where dimensions of one name have one size.

    Args:
        packages: Names of packages.
    """
    jaxtyping.jaxtyped = _checked  # the import hook decorates all functions and classes with this name
    jaxtyping.install_import_hook(packages, "beartype.beartype")


def _checked(*arguments: Any, **_: Any) -> Any:
    """`jaxtyping.jaxtyped`, as it is written around functions and classes, with this file's settings of beartype."""

    def decorate(decorated: Any) -> Any:
        is_dataclass = dataclasses.is_dataclass(decorated)
        function = decorated.__init__ if is_dataclass else decorated
        if not inspect.isfunction(function):
            return _jaxtyped(decorated, typechecker=_beartyped)
        dimensions = [dimension for hint in function.__annotations__.values() for dimension in _dimensions(hint)]
        lazy = inspect.isgeneratorfunction(function)  # beartype checks its arguments when it first goes on
        if any(_UNKNOWN in dimension for dimension in dimensions) or (dimensions and lazy):
            return _jaxtyped(decorated, typechecker=_beartyped)
        check = _with_dimensions if dimensions else _beartyped
        if not is_dataclass:
            return check(function)
        if "__init__" in vars(decorated):
            decorated.__init__ = check(function)
        return decorated

    return decorate(*arguments) if arguments else decorate


def _with_dimensions(function: Any) -> Any:
    """The function, in each of whose calls dimensions of one name have one size."""
    checked = _beartyped(function)

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        with _jaxtyped("context"):
            return checked(*arguments, **named)

    return call


def _dimensions(hint: Any) -> Iterator[str]:
    """The dimensions of every array in a type, or `_UNKNOWN` for text whose meaning is not known yet."""
    if isinstance(hint, str | typing.ForwardRef):
        yield _UNKNOWN
    elif isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray):
        yield hint.dim_str
    else:
        for part in hint if isinstance(hint, list) else typing.get_args(hint):  # a list: arguments of a callable
            yield from _dimensions(part)
