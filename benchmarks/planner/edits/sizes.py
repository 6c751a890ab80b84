"""Edits of the sizes by which a unit's devices divide its work: ranks, replicas, stages, groups, rows.

An edit changes one field of a unit to a random other value; it raises NoOtherValueError where there is none. Where
every replica then takes other devices, the unit keeps its replicas or, as often, its devices.
"""

import random
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.planner.edits.drafts import PlanDraft, UnitDraft
from sharding.planners.problem import PlanningProblem

_MOST_CONTEXT_RANKS = 16
_MOST_RATIO = 4
"""How many times as many replicas or microbatches an edit tries at most, and as few."""


class NoOtherValueError(Exception):
    """A field of which a unit can have no other value."""


def other_value(values: Iterable[Any], current: Any, choice: random.Random) -> Any:
    """A random one of the values that is not the current one; raises NoOtherValueError if there is none."""
    others = sorted({value for value in values if value != current})
    if not others:
        raise NoOtherValueError
    return choice.choice(others)


def nearby(size: int) -> list[int]:
    """Sizes that a person tries next: one or two more or less, twice, half and four times as many."""
    return [value for value in (size - 2, size - 1, size + 1, size + 2, 2 * size, size // 2, 4 * size) if value >= 1]


def divisors_near(problem: PlanningProblem, size: int) -> list[int]:
    """Divisors of the rows that are at most `_MOST_RATIO` times a size, and at least that part of it."""
    return [int(other) for other in problem.row_divisors if size <= _MOST_RATIO * other <= _MOST_RATIO**2 * size]


def edit_dp(problem: PlanningProblem, draft: PlanDraft, unit: UnitDraft, choice: random.Random) -> None:
    """Other replicas; of the backbone with the same rows a replica, or with the same microbatches."""
    before = unit["dp"]
    sizes = nearby(before) if unit.phase_rows else divisors_near(problem, before)
    unit["dp"] = other_value(sizes, before, choice)
    backbone = problem.graph.backbone.name in unit.modules
    if backbone and draft.microbatches * before % unit["dp"] == 0 and choice.random() < 0.5:
        draft.microbatches = draft.microbatches * before // unit["dp"]


def edit_tp(problem: PlanningProblem, draft: PlanDraft, unit: UnitDraft, choice: random.Random) -> None:
    """Other tensor ranks, of a chain for every module that they suit."""
    modules = [problem.graph[name] for name in unit.modules]
    sizes = [tp for tp in _tensor_sizes(problem) if any(module.supports_tp(tp) for module in modules)]
    tp = other_value(sizes, unit["tp"], choice)
    by_module = tuple(
        max(size for size in _tensor_sizes(problem) if size <= tp and module.supports_tp(size)) for module in modules
    )
    devices = unit.device_count
    unit["tp"], unit["module_tp"] = tp, by_module if len(set(by_module)) > 1 else ()
    keep_devices(problem, unit, devices, choice)


def edit_module_tp(problem: PlanningProblem, draft: PlanDraft, unit: UnitDraft, choice: random.Random) -> None:
    """Other tensor ranks of one module of a chain."""
    if len(unit.modules) == 1:
        raise NoOtherValueError
    number = choice.randrange(len(unit.modules))
    sizes = list(unit["module_tp"] or [unit["tp"]] * len(unit.modules))
    allowed = [tp for tp in _tensor_sizes(problem) if problem.graph[unit.modules[number]].supports_tp(tp)]
    sizes[number] = other_value(allowed, sizes[number], choice)
    if unit["tp"] not in sizes:
        unit["dp"], unit["tp"] = max(1, unit["dp"] * unit["tp"] // max(sizes)), max(sizes)
    unit["module_tp"] = tuple(sizes) if len(set(sizes)) > 1 else ()


def edit_cp(problem: PlanningProblem, draft: PlanDraft, unit: UnitDraft, choice: random.Random) -> None:
    """Other context-parallel ranks."""
    if not all(problem.graph[name].supports_cp for name in unit.modules):
        raise NoOtherValueError
    devices = unit.device_count
    unit["cp"] = other_value(_powers_of_two(_MOST_CONTEXT_RANKS), unit["cp"], choice)
    keep_devices(problem, unit, devices, choice)


def edit_ep(problem: PlanningProblem, draft: PlanDraft, unit: UnitDraft, choice: random.Random) -> None:
    """Other expert ranks, that divide experts and replicas."""
    experts = max(problem.graph[name].expert_count for name in unit.modules)
    unit["ep"] = other_value(
        (size for size in range(1, experts + 1) if experts % size == 0 and unit["dp"] % size == 0), unit["ep"], choice
    )


def edit_fsdp(problem: PlanningProblem, draft: PlanDraft, unit: UnitDraft, choice: random.Random) -> None:
    """Other groups of replicas that divide the weights; 1 for none."""
    groups = [size for size in range(1, unit["dp"] + 1) if unit["dp"] % size == 0 and size % unit["ep"] == 0]
    unit["fsdp"] = other_value([1, *groups], unit["fsdp"], choice)


def edit_phase_rows(problem: PlanningProblem, draft: PlanDraft, unit: UnitDraft, choice: random.Random) -> None:
    """More or fewer rows over which items are dealt anew, or the rows of the global batch (0)."""
    (first, *others) = unit.modules
    if others or problem.graph[first].is_backbone:
        raise NoOtherValueError
    per_replica = [unit["dp"] * count for count in (1, 2, 3, 4)]
    whole = [0] if (problem.rows // draft.microbatches) % unit["dp"] == 0 else []
    unit.phase_rows = other_value([*whole, *per_replica], unit.phase_rows, choice)


def edit_pipeline_replicas(problem: PlanningProblem, draft: PlanDraft, unit: UnitDraft, choice: random.Random) -> None:
    """More or fewer replicas of the unit's whole pipeline."""
    devices = unit.device_count
    sizes = [size for size in nearby(unit["pipeline_replicas"]) if size <= draft.microbatches]
    unit["pipeline_replicas"] = other_value(sizes, unit["pipeline_replicas"], choice)
    if choice.random() < 0.5:
        unit["dp"] = devices // (unit.device_count // unit["dp"]) or unit["dp"]


def keep_devices(problem: PlanningProblem, unit: UnitDraft, devices: int, choice: random.Random) -> None:
    """Leaves a unit as many replicas or, as often, as many devices as before, as far as replicas divide the rows."""
    if choice.random() < 0.5:
        return
    field = "pipeline_replicas" if unit["pipeline_replicas"] > 1 else "dp"
    most = max(1, devices * unit[field] // unit.device_count)
    divides_rows = field == "dp" and not unit.phase_rows
    unit[field] = problem.most_replicas(most, unit["ep"]) or 1 if divides_rows else most


def _tensor_sizes(problem: PlanningProblem) -> Sequence[int]:
    return [tp for tp in problem.tensor_sizes if tp <= problem.cluster.devices_per_node]


def _powers_of_two(most: int) -> list[int]:
    return [1 << exponent for exponent in range(most.bit_length())]
