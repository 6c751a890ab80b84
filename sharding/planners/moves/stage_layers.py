"""Changes of which stage has a layer: one layer of a stage in another stage of its unit."""

from collections.abc import Iterator

from sharding.planners.moves.change import Change, UnitChange
from sharding.planners.problem import PlanningProblem
from sharding.plans.plan import Plan

_STAGES = 32  # of a unit, at most
_ALL_PAIRS = 8  # stages of a unit up to which layers go to any other stage, else to a neighbouring one


def layer_changes(problem: PlanningProblem, plan: Plan) -> Iterator[Change]:
    """A layer of every stage in another one, which shifts the borders between the two."""
    for unit in plan.units:
        if unit.stage_count > _STAGES or unit.is_compiled:
            continue
        for source, target in _pairs(unit.stage_count):
            if unit.layers[source] > 1:
                layers = list(unit.layers)
                layers[source] -= 1
                layers[target] += 1
                words = f"{unit.name}: a layer from stage {source} to stage {target}"
                yield Change(words, {unit.name: UnitChange(layers=tuple(layers))})


def _pairs(stages: int) -> list[tuple[int, int]]:
    """Pairs of different stages, neighbours first."""
    pairs = [(source, target) for source in range(stages) for target in range(stages) if source != target]
    near = [pair for pair in pairs if abs(pair[0] - pair[1]) == 1 or stages <= _ALL_PAIRS]
    return sorted(near, key=lambda pair: abs(pair[0] - pair[1]))
