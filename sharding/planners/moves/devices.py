"""Changes of how many devices a unit has: more of the idle ones, fewer, and devices of another unit."""

import itertools
from collections.abc import Iterator

import numpy as np

from sharding.planners.moves.change import Change, UnitChange
from sharding.planners.moves.sizes import resized
from sharding.planners.problem import PlanningProblem
from sharding.plans.plan import Plan
from sharding.plans.unit_plan import UnitPlan

_REPLICAS = (1, -1, 2, -2, 4, -4)


def device_changes(problem: PlanningProblem, plan: Plan) -> Iterator[Change]:
    """More or fewer pipeline ranks; replicas of a unit with devices of its own, or in exchange for another unit's."""
    idle = problem.devices - plan.device_count
    for unit in plan.units:
        yield from _pipeline_changes(unit, idle)
    if plan.shares_devices:
        return
    for unit in plan.units:
        for dp in _other_replicas(unit, idle):
            yield Change(f"{unit.name}: dp {unit.parallelism.dp} -> {dp}", {unit.name: resized(unit, dp)})
    for source, target in itertools.permutations(plan.units, 2):
        for given in (1, 2, 4):
            yield from _given(source, target, given, idle)


def microbatch_changes(problem: PlanningProblem, plan: Plan) -> Iterator[Change]:
    """Other numbers of microbatches, alone, and with more recomputation of all layers of the backbone's unit."""
    backbone = plan.unit_of(problem.graph.backbone.name)
    divisors = [int(number) for number in problem.row_divisors]
    place = divisors.index(plan.microbatches) if plan.microbatches in divisors else 0
    near = {*divisors[max(0, place - 2) : place + 3], plan.microbatches * 2, plan.microbatches // 2}
    for count in sorted(near & set(divisors) - {plan.microbatches}):
        words = f"microbatches {plan.microbatches} -> {count}"
        yield Change(words, microbatches=count)
        if count < plan.microbatches:
            for policy in problem.recompute_choices:
                change = UnitChange(policies=(policy,) * sum(backbone.layers))
                yield Change(f"{words}, {backbone.name} {policy}", {backbone.name: change}, microbatches=count)


def _pipeline_changes(unit: UnitPlan, idle: int) -> Iterator[Change]:
    """One pipeline rank more or fewer, and the most that idle devices make."""
    most = unit.pp + idle // (len(unit.devices) // unit.pp)
    for pp in sorted({unit.pp - 1, unit.pp + 1, most} & set(range(1, most + 1)) - {unit.pp}, reverse=True):
        layers = _resampled(unit.layers, pp * unit.parallelism.chunks)
        if layers:
            yield Change(f"{unit.name}: pp {unit.pp} -> {pp}", {unit.name: UnitChange(layers=layers)})


def _resampled(layers: tuple[int, ...], stages: int) -> tuple[int, ...]:
    """The layers of another number of stages that are as unlike as before; empty if one would have none."""
    ends = np.linspace(0, len(layers), stages + 1)
    bounds = np.rint(np.interp(ends, np.arange(len(layers) + 1), np.cumsum((0, *layers)))).astype(int)
    resampled = np.diff(bounds)
    return tuple(resampled.tolist()) if resampled.min() else ()


def _other_replicas(unit: UnitPlan, idle: int) -> list[int]:
    """Numbers of replicas near a unit's, and the most that idle devices make."""
    dp = unit.parallelism.dp
    most = dp + idle // (len(unit.devices) // dp)
    return sorted(({dp + more for more in _REPLICAS} | {2 * dp, dp // 2, most}) & set(range(1, most + 1)) - {dp})


def _given(source: UnitPlan, target: UnitPlan, given: int, idle: int) -> Iterator[Change]:
    """Replicas of one unit in exchange for as many of another as its devices make."""
    left = source.parallelism.dp - given
    room = idle + given * (len(source.devices) // source.parallelism.dp)
    taken = room // (len(target.devices) // target.parallelism.dp)
    if left < 1 or taken < 1:
        return
    for more in sorted({1, taken}):
        dp = target.parallelism.dp + more
        words = (
            f"{source.name}: dp {source.parallelism.dp} -> {left}, {target.name}: dp {target.parallelism.dp} -> {dp}"
        )
        yield Change(words, {source.name: resized(source, left), target.name: resized(target, dp)})
