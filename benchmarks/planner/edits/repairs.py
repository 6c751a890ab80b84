"""What an edit makes necessary in the other fields of a plan: what a person would write to make the plan valid again.

The edited field stays as it is. A plan that no obvious repair makes valid is refused where it is built or resolved.
"""

import dataclasses
import math

from benchmarks.planner.edits.drafts import GivenSeconds, PlanDraft, UnitDraft, draft_of_unit
from benchmarks.planner.edits.placement import host_of, place_devices, sharing_groups
from sharding.planners.capacities import capacities_of
from sharding.planners.layouts.schedule_fields import with_stage_seconds
from sharding.planners.problem import PlanningProblem
from sharding.plans.plan import Plan
from sharding.plans.unit_plan import UnitPlan

_ORDERED_BY_SECONDS: dict[str, GivenSeconds] = {"interleaved": "seconds", "colocated": "communication"}
"""Schedules that order ops by the seconds of stages, and the seconds that a plan should give them."""


def repair(problem: PlanningProblem, draft: PlanDraft, edited: UnitDraft | None, field: str) -> None:
    """Repairs a draft in place.

    Args:
        problem: The problem.
        draft: The draft after the edit.
        edited: The unit that was edited; None for a field of the step.
        field: The edited field.
    """
    if draft.schedule == "colocated":
        _follow_host(draft, edited)
    for unit in draft.units:
        _repair_collectives(problem, unit, field)
    _repair_rows(problem, draft, edited)
    for unit in draft.units:
        _repair_groups(unit)
        if unit.phase_rows and field != "phase_rows" and unit["dp"] != unit.original.parallelism.dp:
            unit.phase_rows = max(1, unit.original.phase_rows // unit.original.parallelism.dp) * unit["dp"]
    _repair_schedule(draft, field)
    for unit in draft.units:
        _repair_hints(draft, unit)


def build_plan(problem: PlanningProblem, draft: PlanDraft) -> Plan:
    """Builds the plan of a repaired draft: devices, capacities of rows that are dealt anew, seconds of stages.

    Raises:
        PlanError: A field contradicts another.
    """
    devices = place_devices(draft)
    units = [_with_capacities(problem, draft, unit, unit.build(devices[unit.name])) for unit in draft.units]
    plan = Plan(tuple(units), draft.microbatches, draft.schedule)
    if draft.given_seconds == "none":
        return plan
    return with_stage_seconds(problem, plan, communication=draft.given_seconds == "communication")


def largest_divisor(number: int, most: int, multiple_of: int = 1) -> int:
    """The largest divisor of a number, up to `most`, that is a multiple of `multiple_of`; 0 if there is none."""
    return max(
        (size for size in range(multiple_of, min(number, most) + 1, multiple_of) if number % size == 0), default=0
    )


def _with_capacities(problem: PlanningProblem, draft: PlanDraft, unit: UnitDraft, built: UnitPlan) -> UnitPlan:
    """The unit with capacities for the rows that it now has; the original's if nothing that they depend on changed."""
    before = unit.original
    fields = (built.phase_rows, built.parallelism.tp, built.parallelism.collectives, draft.microbatches)
    same = (before.phase_rows, before.parallelism.tp, before.parallelism.collectives, draft.original.microbatches)
    if not built.phase_rows or fields == same:
        return built
    return dataclasses.replace(built, capacities=capacities_of(problem, built, draft.microbatches))


def _follow_host(draft: PlanDraft, edited: UnitDraft | None) -> None:
    """Lets pipeline replicas fill the devices of a backbone that has changed, with as many replicas of each stage."""
    for group in sharing_groups(draft):
        host = host_of(group)
        for unit in group:
            if unit in (host, edited) or not host.is_reshaped:
                continue
            unit["dp"] = host["dp"]
            one = unit.pp * unit["dp"] * unit["cp"] * unit["tp"]
            unit["pipeline_replicas"] = max(1, host.device_count // one)


def _repair_collectives(problem: PlanningProblem, unit: UnitDraft, field: str) -> None:
    """Gives tensor ranks that there were none of before the usual collectives, and one rank none."""
    if field == "collectives" or unit["tp"] == unit.original.parallelism.tp:
        return
    if unit["tp"] == 1 or unit.original.parallelism.tp == 1:
        unit["collectives"] = problem.collectives_of(unit.modules[-1], unit["tp"])


def _repair_rows(problem: PlanningProblem, draft: PlanDraft, edited: UnitDraft | None) -> None:
    """Divides the rows: other microbatches where the edited unit's replicas need them, then fewer replicas elsewhere.

    A unit whose rows are dealt anew may have any replicas. What did not divide the rows before the edit stays.
    """
    if edited and _must_divide_anew(problem, draft, edited):
        per_replica = problem.rows // edited.replica_count
        draft.microbatches = largest_divisor(per_replica, draft.microbatches) or draft.microbatches
    for unit in draft.units:
        if unit is edited or not _must_divide_anew(problem, draft, unit):
            continue
        rows = problem.rows // draft.microbatches
        unit["dp"] = largest_divisor(rows, unit["dp"], unit["ep"]) or unit["dp"]


def _must_divide_anew(problem: PlanningProblem, draft: PlanDraft, unit: UnitDraft) -> bool:
    """Whether the edit is why a unit's replicas and the microbatches do not divide the rows."""
    before = draft_of_unit(unit.original)
    same = (draft.original.microbatches, before.replica_count) == (draft.microbatches, unit.replica_count)
    divides = problem.rows % (draft.microbatches * unit.replica_count) == 0
    return not (unit.phase_rows or divides or (same and not before.phase_rows))


def _repair_groups(unit: UnitDraft) -> None:
    """Makes groups of replicas divide the replicas: all of them where they did, else as many as divide."""
    if unit["dp"] % unit["ep"]:
        unit["ep"] = math.gcd(unit["dp"], unit["ep"])
    if unit["fsdp"] == 1:
        return
    before = unit.original.parallelism
    if before.fsdp == before.dp != unit["dp"] and unit["fsdp"] == before.fsdp:
        unit["fsdp"] = unit["dp"]
    if unit["dp"] % unit["fsdp"] or unit["fsdp"] % unit["ep"]:
        unit["fsdp"] = largest_divisor(unit["dp"], max(unit["fsdp"], unit["ep"]), unit["ep"]) or 1


def _repair_schedule(draft: PlanDraft, field: str) -> None:
    """Names the interleaved schedule where ranks have chunks, and gives the schedules that read seconds some."""
    has_chunks = any(unit["chunks"] > 1 for unit in draft.units)
    if field != "schedule":
        if has_chunks and draft.schedule == "1f1b":
            draft.schedule = "interleaved"
        had_chunks = any(unit.original.parallelism.chunks > 1 for unit in draft.units)
        if had_chunks and not has_chunks and draft.schedule == "interleaved":
            draft.schedule = "1f1b"
    if draft.schedule != draft.original.schedule and draft.schedule in _ORDERED_BY_SECONDS:
        draft.given_seconds = _ORDERED_BY_SECONDS[draft.schedule]
    if any(unit.executor == "compiled" for unit in draft.units):
        draft.given_seconds = "none"


def _repair_hints(draft: PlanDraft, unit: UnitDraft) -> None:
    """Bounds the microbatches in flight by the step's, and lets pipeline replicas take turns where they are others."""
    unit.extra_microbatches = min(unit.extra_microbatches, draft.microbatches * unit["chunks"] - 1)
    replicas = unit.original.parallelism.pipeline_replicas
    if unit["pipeline_replicas"] != replicas or draft.microbatches != draft.original.microbatches:
        unit.replica_of_microbatch = ()
    if unit.executor == "compiled":
        unit.extra_microbatches, unit.replica_of_microbatch = 0, ()
