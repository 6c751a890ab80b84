"""Changes of which stage has a layer: one layer to the stage before or after."""

from collections.abc import Iterator

from sharding.planners.moves.change import Change, UnitChange
from sharding.planners.problem import PlanningProblem
from sharding.plans.plan import Plan

_STAGES = 32  # of a unit, at most


def layer_changes(problem: PlanningProblem, plan: Plan) -> Iterator[Change]:
    """A layer of every stage in the neighbouring stage."""
    for unit in plan.units:
        if unit.stage_count > _STAGES or unit.is_compiled:
            continue
        for source in range(unit.stage_count):
            for target in (source - 1, source + 1):
                if 0 <= target < unit.stage_count and unit.layers[source] > 1:
                    layers = list(unit.layers)
                    layers[source] -= 1
                    layers[target] += 1
                    words = f"{unit.name}: a layer from stage {source} to stage {target}"
                    yield Change(words, {unit.name: UnitChange(layers=tuple(layers))})
