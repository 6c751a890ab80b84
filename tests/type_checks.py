"""Types and shapes of arguments and results, checked at run time in every function of the project."""

import dataclasses
import inspect
import typing
from collections.abc import Sequence
from typing import Any

import beartype
import jaxtyping

_jaxtyped = jaxtyping.jaxtyped
# Not random: beartype would choose the checked item of a sequence with Python's global generator, and threads that do
# so while hypothesis draws an example make its tests fail now and then.
_beartyped = beartype.beartype(conf=beartype.BeartypeConf(violation_type=jaxtyping.TypeCheckError, is_random=False))


def check_types(packages: Sequence[str]) -> None:
    """Checks the functions and dataclasses of packages that are imported from now on.

    What `jaxtyping` puts around a function binds the arguments of every call, to compare dimensions of one name.
    Planning calls millions of functions without arrays, and would take five times as long: beartype alone checks those.

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
        if not inspect.isfunction(function) or any(map(_needs_dimensions, function.__annotations__.values())):
            return _jaxtyped(decorated, typechecker=_beartyped)
        if not is_dataclass:
            return _beartyped(function)
        if "__init__" in vars(decorated):
            decorated.__init__ = _beartyped(function)
        return decorated

    return decorate(*arguments) if arguments else decorate


def _needs_dimensions(hint: Any) -> bool:
    """Whether a type has dimensions, or is text whose meaning is not known yet."""
    if isinstance(hint, str | typing.ForwardRef):
        return True
    if isinstance(hint, list):  # the arguments of a callable
        return any(map(_needs_dimensions, hint))
    if isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray):
        return True
    return any(map(_needs_dimensions, typing.get_args(hint)))
