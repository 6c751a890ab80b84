"""Refuses values of a gin configuration whose type is not the parameter's type, before any object is constructed.

`gin_config` imports this module, which registers the check with gin.
"""

import inspect
import typing
from collections.abc import Mapping
from typing import Any

import gin
import gin.config

from configs.common.checks import annotations_of, conforms, wrong_type

MACRO = "gin.macro"

Bindings = Mapping[tuple[str, str], Mapping[str, Any]]
"""gin's configuration: values by parameter, by (scope, configurable)."""


@gin.config.register_finalize_hook
def refuse_wrong_types(config: Bindings) -> None:
    """Raises TypeError for the first parameter whose value does not conform to its annotation."""
    for (scope, selector), parameters in config.items():
        if selector == MACRO:
            continue
        configurable = gin.config._REGISTRY[selector]
        annotations = annotations_of(configurable.wrapped)
        for parameter, value in parameters.items():
            if parameter not in annotations:
                continue
            try:
                resolved = _resolve(value, config)
            except _UnknownTypeError:
                continue
            if not conforms(resolved, annotations[parameter]):
                name = f"{scope}/{configurable.name}" if scope else configurable.name
                shown = f"{resolved!r} (the macro {_macro_of(value)})" if _macro_of(value) else repr(value)
                raise TypeError(wrong_type(f"{name}.{parameter}", shown, annotations[parameter]))


class _UnknownTypeError(Exception):
    """The type of the object that a reference constructs is not known before it is constructed."""


def _macro_of(value: Any) -> str:
    """Name of the macro that a value refers to; empty for another value."""
    is_reference = isinstance(value, gin.config.ConfigurableReference)
    return "/".join(value.scopes) if is_reference and _referent(value).selector == MACRO else ""


def _referent(reference: gin.config.ConfigurableReference) -> gin.config.Configurable:
    """Returns the configurable that a reference refers to; gin has refused references to nothing before."""
    return typing.cast(gin.config.Configurable, reference.configurable)


def _resolve(value: Any, config: Bindings) -> Any:
    """Replaces the macros in a value by their values, and references by objects of the type that they construct."""
    if isinstance(value, tuple | list):
        return type(value)(_resolve(item, config) for item in value)
    if not isinstance(value, gin.config.ConfigurableReference):
        return value
    if macro := _macro_of(value):
        return _resolve(config.get((macro, MACRO), {}).get("value"), config)
    made = _referent(value).wrapped
    if not value.evaluate:
        return made
    if not inspect.isclass(made) or made.__new__ is not object.__new__:
        raise _UnknownTypeError
    return object.__new__(made)
