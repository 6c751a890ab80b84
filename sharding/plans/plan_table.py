"""A plan as a table for people: a row for each unit."""

from collections.abc import Sequence

from sharding.plans.device_ranges import device_ranges
from sharding.plans.unit_plan import UnitPlan

_DEFAULTS = {
    "module_tp": (),
    "cp": 1,
    "context_transfer": "ring",
    "ep": 1,
    "expert_transfer": "cheaper",
    "fsdp": 1,
    "chunks": 1,
    "collectives": "reduce",
    "extra_in_flight": 0,
    "copies": 1,
    "rows": 0,
    "capacities": (),
    "executor": "dispatched",
}
"""Options that are left out where all units have their default."""


class PlanTable(list[dict[str, str]]):
    """Rows with the same columns, which print as lines of aligned columns under their names."""

    def __str__(self) -> str:
        cells = [list(self[0]), *(list(row.values()) for row in self)] if self else []
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = ("  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)) for row in cells)
        return "\n".join(line.rstrip() for line in lines)


def plan_table(units: Sequence[UnitPlan]) -> PlanTable:
    """One row per unit; options at their default in all units are left out."""
    shown = [key for key, value in _DEFAULTS.items() if any(getattr(unit, key) != value for unit in units)]
    return PlanTable(
        {
            "unit": unit.name,
            "modules": " > ".join(unit.modules),
            "devices": device_ranges(unit.devices),
            "dp": str(unit.dp),
            "tp": str(unit.tp),
            "pp": str(unit.pp),
            **{key: _in_cell(getattr(unit, key)) for key in shown},
            "layers": " ".join(map(str, unit.layers)),
            "recompute": _recompute_cell(unit.recompute),
        }
        for unit in units
    )


def _recompute_cell(recompute: Sequence[str]) -> str:
    """Recomputation of all stages; once where it is the same."""
    return recompute[0] if len(set(recompute)) == 1 else "; ".join(recompute)


def _in_cell(value: int | str | tuple[int, ...]) -> str:
    """A value of a unit; numbers of a list are separated by spaces."""
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
