"""Units for tests whose parameters name fields of a unit, of its `Parallelism` and of its `ScheduleHints` alike."""

import dataclasses
from collections.abc import Iterable
from typing import Any

from sharding.plans.parallelism import Parallelism
from sharding.plans.schedule_hints import ScheduleHints
from sharding.plans.unit_plan import UnitPlan

_NESTED = {"parallelism": Parallelism, "schedule_hints": ScheduleHints}


def flat_unit(*args: Any, **fields: Any) -> UnitPlan:
    """A unit of fields that are its own or belong to one of its records."""
    return UnitPlan(*args, **_nested({name: record() for name, record in _NESTED.items()}, fields))


def module_unit(
    module: str, devices: Iterable[int], *, layers: tuple[int, ...] = (1,), name: str = "", **fields: Any
) -> UnitPlan:
    """A unit of one module, with its name if no other is given, without recomputation; fields as of `flat_unit`."""
    fields = {"recompute": ("none",) * len(layers)} | fields
    return flat_unit(name or module, (module,), tuple(devices), layers=layers, **fields)


def changed_unit(unit: UnitPlan, **fields: Any) -> UnitPlan:
    """A unit with other fields, which are its own or belong to one of its records."""
    return dataclasses.replace(unit, **_nested({name: getattr(unit, name) for name in _NESTED}, fields))


def _nested(records: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a unit, with the records as they are once their fields are taken out."""
    unit_fields = dict(fields)
    for name, record in records.items():
        keys = [field.name for field in dataclasses.fields(record) if field.name in unit_fields]
        unit_fields[name] = dataclasses.replace(
            unit_fields.get(name, record), **{key: unit_fields.pop(key) for key in keys}
        )
    return unit_fields
