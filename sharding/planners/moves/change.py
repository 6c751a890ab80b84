"""A change of a plan, and the plan with it: devices, capacities and hints follow what is changed."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from sharding.planners.capacities import capacities_of
from sharding.planners.layouts.placement import place_units
from sharding.planners.layouts.schedule_fields import with_stage_seconds
from sharding.planners.problem import PlanningProblem
from sharding.plans.parallelism import Parallelism
from sharding.plans.plan import Plan
from sharding.plans.plan_error import PlanError
from sharding.plans.resolved.resolved_plan import resolve_plan
from sharding.plans.schedule_hints import ScheduleHints
from sharding.plans.text.recompute_text import recompute_text
from sharding.plans.unit_checks import check_positions
from sharding.plans.unit_plan import UnitPlan
from sharding.specs.layers.layer import RecomputePolicy


@dataclasses.dataclass(frozen=True, kw_only=True)
class UnitChange:
    """Other values of a unit's fields; what is None or absent stays.

    Attributes:
        layers: Layers of each virtual stage. Every layer keeps its recomputation policy.
        policies: Recomputation policy of each layer, in chain order.
        phase_rows: Rows of a microbatch of its own, or 0.
        extra_microbatches: As in `ScheduleHints`.
        parallelism: Fields of `Parallelism` by name.
    """

    layers: tuple[int, ...] | None = None
    policies: tuple[RecomputePolicy, ...] | None = None
    phase_rows: int | None = None
    extra_microbatches: int | None = None
    parallelism: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class Change(NamedTuple):
    """A change of a plan.

    Attributes:
        words: What is changed, for people.
        units: Changes of units, by name.
        microbatches: Microbatches of a step; None for as many as before.
        schedule: Name of the schedule; None for the same.
    """

    words: str
    units: Mapping[str, UnitChange] = {}
    microbatches: int | None = None
    schedule: str | None = None

    @property
    def recomputes_only(self) -> bool:
        """Whether it changes nothing but what layers recompute: the same ops take other seconds."""
        others = (
            dataclasses.replace(unit, policies=None) != UnitChange() or unit.policies is None
            for unit in self.units.values()
        )
        return self.microbatches is None and self.schedule is None and not any(others)


def changed_plan(problem: PlanningProblem, plan: Plan, change: Change) -> Plan:
    """The plan with a change, and with what belongs to it: devices, capacities, seconds of stages.

    Raises:
        PlanError: There is no such plan, or it cannot be trained on the problem's devices and rows.
    """
    microbatches = change.microbatches or plan.microbatches
    units = [_changed_unit(problem, unit, change.units.get(unit.name), microbatches) for unit in plan.units]
    if plan.shares_devices:
        placed = _on_shared_devices(problem, plan, units)
        changed = Plan(tuple(placed), microbatches)
    else:
        changed = place_units(units, microbatches)
    changed = dataclasses.replace(changed, schedule=change.schedule or plan.schedule)
    resolve_plan(changed, problem.graph, problem.devices, problem.rows)
    check_positions(changed.units, problem.graph, problem.row_positions)
    changed = _with_capacities(problem, plan, changed)
    return _with_seconds(problem, plan, changed)


def all_policies(unit: UnitPlan) -> tuple[RecomputePolicy, ...]:
    """The recomputation policy of every layer of a unit, in chain order."""
    return tuple(policy for stage in range(unit.stage_count) for policy in unit.layer_recompute(stage))


def _changed_unit(problem: PlanningProblem, unit: UnitPlan, change: UnitChange | None, microbatches: int) -> UnitPlan:
    """The unit with a change, on devices numbered from 0, without seconds of stages."""
    change = change or UnitChange()
    layers = change.layers or unit.layers
    parallelism = dataclasses.replace(unit.parallelism, **_with_followers(problem, unit, change.parallelism))
    phase_rows = unit.phase_rows if change.phase_rows is None else change.phase_rows
    return dataclasses.replace(
        unit,
        devices=range(parallelism.device_count(len(layers) // parallelism.chunks)),
        layers=layers,
        parallelism=parallelism,
        recompute=_recompute(change.policies or all_policies(unit), layers),
        phase_rows=phase_rows,
        capacities=unit.capacities if phase_rows else (),
        schedule_hints=_hints(unit, change, parallelism, microbatches),
    )


def _hints(unit: UnitPlan, change: UnitChange, parallelism: Parallelism, microbatches: int) -> ScheduleHints:
    """The hints without seconds; microbatches stay on their pipeline replicas if there are as many of both."""
    old = unit.schedule_hints
    extra = change.extra_microbatches
    if extra is None:
        extra = min(old.extra_microbatches, microbatches * parallelism.chunks - 1)
    same = parallelism.pipeline_replicas == unit.parallelism.pipeline_replicas
    kept = old.replica_of_microbatch if same and len(old.replica_of_microbatch) == microbatches else ()
    return ScheduleHints(extra_microbatches=extra, replica_of_microbatch=kept)


def _with_followers(problem: PlanningProblem, unit: UnitPlan, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The changed fields of `Parallelism`, with the fields that follow: collectives of tp, all replicas of fsdp."""
    followers: dict[str, Any] = {}
    if "tp" in fields:
        cp = fields.get("cp", unit.parallelism.cp)
        followers["collectives"] = problem.collectives_of(unit.modules[0], fields["tp"], cp)
    if "dp" in fields and 1 < unit.parallelism.fsdp == unit.parallelism.dp:
        followers["fsdp"] = fields["dp"]
    return followers | dict(fields)


def _recompute(policies: tuple[RecomputePolicy, ...], layers: tuple[int, ...]) -> tuple[str, ...]:
    texts, first = [], 0
    for count in layers:
        texts.append(recompute_text(policies[first : first + count]))
        first += count
    return tuple(texts)


def _on_shared_devices(problem: PlanningProblem, plan: Plan, units: list[UnitPlan]) -> list[UnitPlan]:
    """The units on their devices; more pipeline ranks are on idle devices."""
    is_larger = any(len(unit.devices) > len(old.devices) for old, unit in zip(plan.units, units, strict=True))
    idle = _idle_devices(problem, plan) if is_larger else []
    placed = []
    for old, unit in zip(plan.units, units, strict=True):
        more = len(unit.devices) - len(old.devices)
        if more and unit.parallelism != old.parallelism:
            raise PlanError(f"unit {unit.name} shares its {len(old.devices)} devices; use as many")
        if more > len(idle):
            raise PlanError(f"unit {unit.name} needs {more} more devices, but {len(idle)} are idle; use fewer")
        devices = (*old.devices, *idle[:more]) if more > 0 else old.devices[: len(unit.devices)]
        idle = idle[max(more, 0) :]
        placed.append(dataclasses.replace(unit, devices=devices))
    return placed


def _idle_devices(problem: PlanningProblem, plan: Plan) -> list[int]:
    """The devices that are in no unit, ascending."""
    used = set().union(*(unit.devices for unit in plan.units))
    return [device for device in range(problem.devices) if device not in used]


def _with_capacities(problem: PlanningProblem, before: Plan, plan: Plan) -> Plan:
    """The plan with capacities for units whose rows of their own are others than before."""

    def with_own(unit: UnitPlan, old: UnitPlan) -> UnitPlan:
        if not unit.phase_rows or _row_key(unit, plan) == _row_key(old, before):
            return unit
        return dataclasses.replace(unit, capacities=capacities_of(problem, unit, plan.microbatches))

    units = (with_own(unit, old) for unit, old in zip(plan.units, before.units, strict=True))
    return dataclasses.replace(plan, units=tuple(units))


def _row_key(unit: UnitPlan, plan: Plan) -> tuple:
    """What capacities of a unit's rows depend on."""
    parallelism = unit.parallelism
    return plan.microbatches, unit.phase_rows, parallelism.tp, parallelism.cp, parallelism.collectives


def _with_seconds(problem: PlanningProblem, before: Plan, plan: Plan) -> Plan:
    """The plan with seconds of stages where the plan before has some, or its schedule fills idle time by them."""
    hints = [unit.schedule_hints for unit in before.units]
    fills = plan.schedule == "colocated"
    if not fills and not any(unit_hints.forward_seconds for unit_hints in hints):
        return plan
    communication = fills or any(unit_hints.forward_communication for unit_hints in hints)
    return with_stage_seconds(problem, plan, communication)
