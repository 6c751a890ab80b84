"""A configuration as flat parameters, as experiment trackers compare runs by them.

Given to writers when the trainer, or `python -m mmjax.train`, opens them.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

Parameter = str | int | float | bool
"""Value of a parameter; None is written as `none`."""


def flat_parameters(config: Any, prefix: str = "") -> dict[str, Parameter]:
    """The fields of a configuration by dotted name, such as `model.backbone.width`.

    Args:
        config: A dataclass whose fields are plain values, functions, dataclasses, or sequences and mappings of these.
            Members of a sequence that have a name (`encoders`) are named by it, others by their number.
        prefix: Prefix of the names.
    """
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        members = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    elif isinstance(config, Mapping):
        members = {str(name): value for name, value in config.items()}
    elif isinstance(config, tuple | list) and any(dataclasses.is_dataclass(member) for member in config):
        members = {getattr(member, "name", str(number)): member for number, member in enumerate(config)}
    else:
        return {prefix: _value(config)}
    parameters: dict[str, Parameter] = {}
    for name, member in members.items():
        parameters |= flat_parameters(member, f"{prefix}.{name}" if prefix else name)
    return parameters


def _value(value: Any) -> Parameter:
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return ", ".join(str(_value(member)) for member in value)
    if isinstance(value, functools.partial):
        value = value.func
    if callable(value):
        return f"{value.__module__}.{getattr(value, '__qualname__', type(value).__qualname__)}"
    return "none" if value is None else str(value)
