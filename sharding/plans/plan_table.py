"""A plan as a table for people: a row for each unit.

`Plan.table` returns such a table.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from sharding.plans.parallelism import Parallelism
from sharding.plans.text.device_ranges import device_ranges
from sharding.plans.unit_plan import UnitPlan

_ALWAYS_SHOWN = ("dp", "tp")
_UNIT_OPTIONS = {"phase_rows": 0, "capacities": (), "executor": "dispatched"}


_PARALLELISM = {
    field.name: field.default for field in dataclasses.fields(Parallelism) if field.name not in _ALWAYS_SHOWN
}
"""Defaults of sizes and collectives; a column whose units all have it is left out, like `_UNIT_OPTIONS`."""


class PlanTable(list[dict[str, str]]):
    """Rows with the same columns, which print as lines of aligned columns under their names."""

    def __str__(self) -> str:
        cells = [list(self[0]), *(list(row.values()) for row in self)] if self else []
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = ("  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)) for row in cells)
        return "\n".join(line.rstrip() for line in lines)


def plan_table(units: Sequence[UnitPlan]) -> PlanTable:
    """One row per unit; options at their default in all units are left out."""
    options = [_options(unit) for unit in units]
    defaults = _PARALLELISM | {"extra_microbatches": 0} | _UNIT_OPTIONS
    shown = [key for key, value in defaults.items() if any(unit_options[key] != value for unit_options in options)]
    return PlanTable(
        {
            "unit": unit.name,
            "modules": " > ".join(unit.modules),
            "devices": device_ranges(unit.devices),
            "dp": str(unit.parallelism.dp),
            "tp": str(unit.parallelism.tp),
            "pp": str(unit.pp),
            **{key: _in_cell(unit_options[key]) for key in shown},
            "layers": " ".join(map(str, unit.layers)),
            "recompute": _recompute_cell(unit.recompute),
        }
        for unit, unit_options in zip(units, options, strict=True)
    )


def _options(unit: UnitPlan) -> dict[str, Any]:
    """The options of a unit that the table can show."""
    parallelism = {key: getattr(unit.parallelism, key) for key in _PARALLELISM}
    extra = {"extra_microbatches": unit.schedule_hints.extra_microbatches}
    return parallelism | extra | {key: getattr(unit, key) for key in _UNIT_OPTIONS}


def _recompute_cell(recompute: Sequence[str]) -> str:
    """Recomputation of all stages; once where it is the same."""
    return recompute[0] if len(set(recompute)) == 1 else "; ".join(recompute)


def _in_cell(value: int | str | tuple[int, ...]) -> str:
    """A value of a unit; numbers of a list are separated by spaces."""
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
