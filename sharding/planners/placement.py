"""From layouts to plans: units on consecutive devices."""

import dataclasses
from collections.abc import Sequence

from sharding.planners.fixed_ranks import SINGLE_RANKS, FixedRanks
from sharding.planners.layout_search import DisjointLayout
from sharding.planners.problem import PlanningProblem
from sharding.plans.plan import Plan
from sharding.plans.unit_plan import UnitPlan


def place_units(units: Sequence[UnitPlan], microbatches: int) -> Plan:
    """Gives units, whose devices are counted from 0 each, devices one behind the other.

    Larger instances come first: where tensor and sequence ranks divide a node, none of their groups lies on two nodes.
    """
    starts, start = {}, 0
    for unit in sorted(units, key=lambda unit: -unit.replica_size):
        starts[unit.name] = start
        start += len(unit.devices)
    placed = [_moved(unit, starts[unit.name]) for unit in units]
    schedule = "interleaved" if any(unit.chunks > 1 for unit in units) else "1f1b"
    return Plan(tuple(placed), microbatches, schedule)


def make_unit(
    modules: tuple[str, ...],
    dp: int,
    tp: int,
    layers: tuple[int, ...],
    recompute: str,
    chunks: int = 1,
    given: FixedRanks = SINGLE_RANKS,
    collectives: str = "reduce",
) -> UnitPlan:
    """A unit with devices counted from 0, named after its last module."""
    devices = tuple(range(dp * given.cp * tp * (len(layers) // chunks)))
    return UnitPlan(
        modules[-1],
        modules,
        devices,
        dp=dp,
        tp=tp,
        layers=layers,
        recompute=(recompute,) * len(layers),
        chunks=chunks,
        cp=given.cp,
        ep=given.ep,
        collectives=collectives,
    )


def plan_of_layout(problem: PlanningProblem, layout: DisjointLayout) -> Plan:
    """A plan that gives each module a unit of its own."""
    units = []
    for name, choice in layout.choices.items():
        table, way = problem.module_tables[name], choice.candidate
        chunks = int(table.chunks[way])
        cut = (table.layers[way], table.recompute[way], chunks)
        tp = int(table.tp[way])
        units.append(make_unit((name,), choice.dp, tp, *cut, table.fixed_ranks, problem.collectives_of(name, tp)))
    return place_units(units, layout.microbatches)


def _moved(unit: UnitPlan, start: int) -> UnitPlan:
    return dataclasses.replace(unit, devices=tuple(start + device for device in unit.devices))
