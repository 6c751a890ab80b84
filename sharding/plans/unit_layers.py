"""Which layers of which modules each stage of a unit owns.

Costs, checks and the trainer's engine read these runs.
"""

import itertools
from collections.abc import Iterable
from typing import NamedTuple

from sharding.plans.plan_error import PlanError
from sharding.plans.unit_plan import UnitPlan
from sharding.specs.modules import ModuleGraph


class LayerRun(NamedTuple):
    """Consecutive layers of one module on a stage: from `first` up to `last`, which is excluded."""

    module: str
    first: int
    last: int


def program_layers(units: Iterable[UnitPlan], graph: ModuleGraph) -> dict[tuple[str, int], tuple[LayerRun, ...]]:
    """By unit and number, the runs of layers of every stage with programs of its own, in chain order.

    A unit that is one program is one stage (`UnitPlan.program_count`). Raises PlanError as `stage_layers` does.
    """
    return {(unit.name, number): runs for unit in units for number, runs in enumerate(_layers_of_programs(unit, graph))}


def _layers_of_programs(unit: UnitPlan, graph: ModuleGraph) -> tuple[tuple[LayerRun, ...], ...]:
    if not unit.is_compiled:
        return stage_layers(unit, graph)
    return (tuple(LayerRun(name, 0, graph[name].layer_count) for name in unit.modules),)


def stage_layers(unit: UnitPlan, graph: ModuleGraph) -> tuple[tuple[LayerRun, ...], ...]:
    """For every virtual stage, the runs of layers that it owns, in chain order.

    Raises PlanError if the layers do not add up, or a stage boundary cuts a module that must be on one stage.
    """
    modules = [graph[name] for name in unit.modules]
    most_stages = sum(module.layer_count if module.divisible else 1 for module in modules)
    indivisible = [module.name for module in modules if not module.divisible]
    if unit.stage_count > most_stages and indivisible:
        raise PlanError(
            f"unit {unit.name} has {unit.stage_count} stages, but {' > '.join(unit.modules)} can be cut into at most "
            f"{most_stages}: {', '.join(indivisible)} is one stage, because the skips of a U-Net join its first blocks "
            "to its last; use data or tensor parallelism there"
        )
    total = sum(module.layer_count for module in modules)
    if sum(unit.layers) != total:
        counts = " + ".join(f"{module.name} {module.layer_count}" for module in modules)
        raise PlanError(
            f"unit {unit.name}: layers {list(unit.layers)} add up to {sum(unit.layers)}, "
            f"but its modules have {total} ({counts})"
        )
    ends = list(itertools.accumulate(unit.layers))
    stages: list[list[LayerRun]] = [[] for _ in ends]
    offset = 0
    for module in modules:
        for stage, end in enumerate(ends):
            first = max(end - unit.layers[stage], offset)
            last = min(end, offset + module.layer_count)
            if first < last:
                stages[stage].append(LayerRun(module.name, first - offset, last - offset))
        owners = [stage for stage, runs in enumerate(stages) if any(run.module == module.name for run in runs)]
        if not module.divisible and len(owners) > 1:
            raise PlanError(
                f"unit {unit.name}: layers {list(unit.layers)} put {module.name} on stages {owners}, but it is one "
                f"stage; let one stage own all its {module.layer_count} layers"
            )
        offset += module.layer_count
    return tuple(map(tuple, stages))
