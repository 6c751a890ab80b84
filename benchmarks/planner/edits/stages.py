"""Edits of a unit's stages: how many there are, which layers each owns, and what is recomputed of them."""

import random
from collections.abc import Sequence

import numpy as np

from benchmarks.planner.edits.drafts import PlanDraft, UnitDraft
from benchmarks.planner.edits.sizes import NoOtherValueError, keep_devices, nearby, other_value
from sharding.planners.problem import PlanningProblem
from sharding.specs.layers.layer import RECOMPUTE_POLICIES


def edit_pp(problem: PlanningProblem, draft: PlanDraft, unit: UnitDraft, choice: random.Random) -> None:
    """More or fewer pipeline ranks, among whose stages the layers are divided anew."""
    devices = unit.device_count
    _divide_anew(problem, draft, unit, other_value(nearby(unit.pp), unit.pp, choice), unit["chunks"])
    keep_devices(problem, unit, devices, choice)


def edit_chunks(problem: PlanningProblem, draft: PlanDraft, unit: UnitDraft, choice: random.Random) -> None:
    """More or fewer virtual stages of each pipeline rank, among which the layers are divided anew."""
    _divide_anew(problem, draft, unit, unit.pp, other_value(nearby(unit["chunks"]), unit["chunks"], choice))


def edit_layers(problem: PlanningProblem, draft: PlanDraft, unit: UnitDraft, choice: random.Random) -> None:
    """A layer of a stage that moves to a neighbour, or one that passes from a stage to another by all between them."""
    donors = [stage for stage, count in enumerate(unit.layers) if count > 1]
    if len(unit.layers) == 1 or not donors:
        raise NoOtherValueError
    donor = choice.choice(donors)
    near = [stage for stage in (donor - 1, donor + 1) if 0 <= stage < len(unit.layers)]
    far = [stage for stage in range(len(unit.layers)) if stage != donor]
    unit.layers[donor] -= 1
    unit.layers[choice.choice(near if choice.random() < 0.5 else far)] += 1


def edit_module_recompute(problem: PlanningProblem, draft: PlanDraft, unit: UnitDraft, choice: random.Random) -> None:
    """Another recomputation policy of all layers of one module."""
    number = choice.randrange(len(unit.modules))
    counts = [problem.graph[name].layer_count for name in unit.modules]
    _recompute(unit, slice(sum(counts[:number]), sum(counts[: number + 1])), choice)


def edit_stage_recompute(problem: PlanningProblem, draft: PlanDraft, unit: UnitDraft, choice: random.Random) -> None:
    """Another recomputation policy of all layers of one stage."""
    _recompute(unit, choice.choice(list(unit.stage_slices())), choice)


def edit_layer_recompute(problem: PlanningProblem, draft: PlanDraft, unit: UnitDraft, choice: random.Random) -> None:
    """Another recomputation policy of some layers of one stage: its first ones, its last ones, or as often any."""
    stage = choice.choice(list(unit.stage_slices()))
    if stage.stop - stage.start < 2:
        raise NoOtherValueError
    count = choice.randrange(1, stage.stop - stage.start)
    last = stage.stop - count
    first = choice.choice((stage.start, last, choice.randint(stage.start, last), choice.randint(stage.start, last)))
    _recompute(unit, slice(first, first + count), choice)


def divide(seconds: Sequence[float], stages: int) -> list[int]:
    """How many of consecutive layers, of so many seconds each, stages get that take about as long as each other.

    Raises NoOtherValueError if there are more stages than layers.
    """
    if stages > len(seconds):
        raise NoOtherValueError
    ends = np.cumsum(seconds)
    targets = ends[-1] * np.arange(1, stages) / stages
    cuts = np.searchsorted(ends, targets - seconds[0] / 2) + 1
    for stage in range(stages - 1):  # a layer or more each, before and after
        least = cuts[stage - 1] + 1 if stage else 1
        cuts[stage] = min(max(cuts[stage], least), len(seconds) - (stages - 1 - stage))
    return np.diff([0, *cuts, len(seconds)]).tolist()


def _divide_anew(problem: PlanningProblem, draft: PlanDraft, unit: UnitDraft, pp: int, chunks: int) -> None:
    """Divides a unit's layers by the seconds that they take on the stages of the plan before the edit."""
    costs = problem.mean_microbatch_costs(draft.original)
    seconds: list[float] = []
    for stage, count in enumerate(unit.original.layers):
        stage_costs = costs[unit.name, stage]
        seconds += [float(np.mean(stage_costs.forward) + np.mean(stage_costs.backward)) / count] * count
    unit.layers = divide(seconds, pp * chunks)
    unit["chunks"] = chunks


def _recompute(unit: UnitDraft, layers: slice, choice: random.Random) -> None:
    """Gives layers one policy, another than at least one of them has."""
    count = layers.stop - layers.start
    others = [policy for policy in RECOMPUTE_POLICIES if unit.policies[layers] != [policy] * count]
    unit.policies[layers] = [choice.choice(others)] * count
