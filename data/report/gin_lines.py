"""Suggested settings of the data as lines of a gin file, to paste."""

import dataclasses
from collections.abc import Mapping

from data.data_config import DataConfig

_NAMED = frozenset(field.name for field in dataclasses.fields(DataConfig))


def data_config_lines(capacity: Mapping[str, int | float], **settings: object) -> tuple[str, ...]:
    """A block that binds capacities of a row, by quantity, and other settings of `DataConfig`."""
    named = {name: int(size) for name, size in capacity.items() if name in _NAMED}
    others = tuple((name, int(size)) for name, size in capacity.items() if name not in _NAMED)
    bound: dict[str, object] = {**named, **settings, **({"capacities": others} if others else {})}
    return ("data_config.DataConfig:", *(f"  {name} = {value!r}" for name, value in bound.items()))
