"""The plan: which devices hold which modules, how they are divided, and in how many microbatches a step runs."""

import contextlib
import dataclasses
import os
from typing import Any

from configs.common.short_repr import short_repr
from configs.common.strict_json import parse_json
from configs.common.whole_files import write_whole
from sharding.plans.compiled_units import check_compiled_unit
from sharding.plans.device_numbers import count_distinct, highest
from sharding.plans.plan_error import PlanError
from sharding.plans.plan_html import plan_html
from sharding.plans.plan_purpose import PlanPurpose, differences, module_sizes
from sharding.plans.plan_table import PlanTable, plan_table
from sharding.plans.text.bounds import MAX_DEVICES, MAX_MICROBATCHES, MAX_UNITS, name_fault
from sharding.plans.text.device_ranges import device_ranges, parse_ranges
from sharding.plans.text.json_fields import read_file, read_record
from sharding.plans.text.json_text import json_text
from sharding.plans.unit_checks import check_unit
from sharding.plans.unit_plan import UnitPlan
from sharding.specs.modules import ModuleGraph

MAX_LISTED_DEVICES = 4 * MAX_DEVICES
"""Devices of all units of a plan file together, each as often as a unit lists it."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """The units, and how a step runs over them. Units may share devices.

    Attributes:
        units: The units; every module of the model is in exactly one.
        microbatches: Number of microbatches of a step.
        schedule: Name of the schedule: `1f1b`, `interleaved`, `gpipe`, `zb-h1`, `colocated` or a registered one
            (`register_schedule`).
        made_for: The model, rows, data and cluster it was made for; nothing of it is used to run the plan.
    """

    units: tuple[UnitPlan, ...]
    microbatches: int = 1
    schedule: str = "1f1b"
    made_for: PlanPurpose | None = None

    __repr__ = short_repr

    def __post_init__(self) -> None:
        if not self.units:
            raise PlanError("the plan has no units; list at least one")
        if not 1 <= self.microbatches <= MAX_MICROBATCHES:
            raise PlanError(
                f"the plan's microbatches is {self.microbatches}; it must be at least 1 and at most {MAX_MICROBATCHES}"
            )
        if fault := name_fault(self.schedule):
            raise PlanError(f"the plan's schedule: {fault}")
        names = [unit.name for unit in self.units]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise PlanError(f"unit names must differ, but {', '.join(repeated)} is used more than once")
        for unit in self.units:
            extra, most = unit.schedule_hints.extra_microbatches, self.microbatches * unit.parallelism.chunks
            if extra >= most:
                raise PlanError(
                    f"unit {unit.name}: extra_microbatches is {extra}, but a step has only {most} (microbatches x "
                    "chunks); use at most one less"
                )
            self._check_pipeline_replicas(unit)
        without = [unit.name for unit in self.units if not unit.schedule_hints.forward_seconds]
        if 0 < len(without) < len(self.units):
            raise PlanError(f"give forward_seconds for all units or for none; {', '.join(without)} has none")

    def _check_pipeline_replicas(self, unit: UnitPlan) -> None:
        replicas, given = unit.parallelism.pipeline_replicas, unit.schedule_hints.replica_of_microbatch
        if replicas > self.microbatches:
            raise PlanError(
                f"unit {unit.name}: pipeline_replicas {replicas} take whole microbatches, but a step has only "
                f"{self.microbatches}; use at most {self.microbatches}, or more microbatches"
            )
        if given and len(given) != self.microbatches:
            raise PlanError(
                f"unit {unit.name}: replica_of_microbatch has {len(given)} entries, but a step has "
                f"{self.microbatches} microbatches; give one for each, or none"
            )

    @property
    def device_count(self) -> int:
        """Number of distinct devices."""
        return count_distinct(unit.devices for unit in self.units)

    @property
    def devices_needed(self) -> int:
        """Devices that there must be: one more than the highest number of a device."""
        return 1 + max(highest(unit.devices) for unit in self.units)

    @property
    def shares_devices(self) -> bool:
        """Whether a device is in several units."""
        return self.device_count < sum(len(unit.devices) for unit in self.units)

    def unit_of(self, module: str) -> UnitPlan:
        """The unit that holds a module."""
        for unit in self.units:
            if module in unit.modules:
                return unit
        raise PlanError(f"module {module} is in no unit; add it to one of {', '.join(u.name for u in self.units)}")

    def table(self) -> PlanTable:
        """One row per unit, for people, who can print it; options at their default in all units are left out."""
        return plan_table(self.units)

    def _repr_html_(self) -> str:
        """The plan in a notebook."""
        return plan_html(self.units, self.table(), self.schedule, self.microbatches)

    def to_json(self) -> str:
        """The plan as JSON, with one key a line, without lists that are empty."""
        units = [
            _without_empty(dataclasses.asdict(unit) | {"devices": device_ranges(unit.devices)}) for unit in self.units
        ]
        made_for = {"made_for": self.made_for.document()} if self.made_for else {}
        fields = made_for | {"microbatches": self.microbatches, "schedule": self.schedule, "units": units}
        return json_text(fields) + "\n"

    @staticmethod
    def from_json(text: str | bytes) -> "Plan":
        """Reads the format of `to_json`; raises PlanError naming a key that is unknown, missing or of another type."""
        document = parse_json(text, "the plan", PlanError)
        _check_sizes(document)
        return read_record(document, Plan, "the plan", PlanError)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> "Plan":
        """Reads a plan file; errors name the file."""
        return read_file(path, Plan.from_json, PlanError)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a plan file, which is replaced at once."""
        write_whole(path, self.to_json())


def _without_empty(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a unit without lists that are empty, and without hints if there are none."""
    hints = {key: value for key, value in fields["schedule_hints"].items() if value not in ((), 0)}
    parallelism = {key: value for key, value in fields["parallelism"].items() if value != ()}
    kept = fields | {"parallelism": parallelism, "schedule_hints": hints}
    return {key: value for key, value in kept.items() if value not in ((), {})}


def as_plan(plan: "Plan | str | os.PathLike[str]") -> Plan:
    """Returns a plan as it is, or reads the plan of a plan file."""
    return plan if isinstance(plan, Plan) else Plan.load(plan)


def _check_sizes(document: Any) -> None:
    """Raises PlanError if a document has too many units, or they list too many devices, before any is expanded.

    What is wrong with their text is said when it is read.
    """
    units = document.get("units") if isinstance(document, dict) else None
    if isinstance(units, list) and len(units) > MAX_UNITS:
        raise PlanError(f"the plan has {len(units)} units; it may have at most {MAX_UNITS}")
    listed = 0
    for unit in units if isinstance(units, list) else ():
        text = unit.get("devices") if isinstance(unit, dict) else None
        if isinstance(text, str):
            with contextlib.suppress(ValueError):
                listed += sum(map(len, parse_ranges(text)))
        if listed > MAX_LISTED_DEVICES:
            raise PlanError(f"the plan's units list more than {MAX_LISTED_DEVICES} devices together; list fewer")


def single_device_plan(graph: ModuleGraph, microbatches: int = 1) -> Plan:
    """A plan with every module in a unit of its own, all on device 0."""
    return Plan(
        tuple(UnitPlan(module.name, (module.name,), (0,), layers=(module.layer_count,)) for module in graph.modules),
        microbatches=microbatches,
    )


def check_layout(plan: Plan, graph: ModuleGraph, devices: int) -> None:
    """Raises PlanError if the units of a plan cannot hold the model on `devices` devices, whatever rows they get."""
    try:
        _check_placement(plan, graph)
        for unit in plan.units:
            check_unit(unit, graph, devices)
            check_compiled_unit(unit, plan.schedule, graph)
    except PlanError as error:
        there, here = plan.made_for or PlanPurpose(), PlanPurpose(model=module_sizes(graph))
        if other := differences(there, here):
            raise PlanError(f"{error}; the plan was made for another model: {', '.join(other)}") from error
        raise


def _check_placement(plan: Plan, graph: ModuleGraph) -> None:
    placed = [module for unit in plan.units for module in unit.modules]
    for unit in plan.units:
        for module in unit.modules:
            if module not in graph.names:
                raise PlanError(
                    f"unit {unit.name} holds {module}, which the model lacks; it has {', '.join(graph.names)}"
                )
    for module in graph.names:
        if module not in placed:
            raise PlanError(f"module {module} is in no unit; add it to one")
        if placed.count(module) > 1:
            owners = [unit.name for unit in plan.units for name in unit.modules if name == module]
            raise PlanError(f"module {module} is in {' and '.join(owners)}; keep it in one unit, once")


def check_rows(plan: Plan, rows: int) -> None:
    """Raises PlanError, naming the unit at fault and the remedy, if the units of a plan cannot divide so many rows."""
    for unit in plan.units:
        for module in unit.modules:
            dp = 1 if unit.phase_rows else unit.replicas_of(module)
            if rows % (plan.microbatches * dp):
                module_words = f" of {module}" if unit.parallelism.module_tp else ""
                raise PlanError(
                    f"unit {unit.name}: {rows} rows of the global batch are not divisible by {plan.microbatches} "
                    f"microbatches x dp {dp}{module_words} = {plan.microbatches * dp}; use a multiple of "
                    f"{plan.microbatches * dp} rows, or another dp"
                )
