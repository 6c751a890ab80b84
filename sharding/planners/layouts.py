"""From layouts to plans: units on consecutive devices."""

import dataclasses
from collections.abc import Sequence

from sharding.plan import Plan, UnitPlan
from sharding.planners.given import ALONE, Given
from sharding.planners.problem import Problem
from sharding.planners.search import Layout


def place(units: Sequence[UnitPlan], microbatches: int) -> Plan:
    """Gives units, whose devices are counted from 0 each, devices one behind the other.

    Larger instances come first: where tensor and sequence ranks divide a node, none of their groups lies on two nodes.
    """
    starts, start = {}, 0
    for unit in sorted(units, key=lambda unit: -unit.instance_size):
        starts[unit.name] = start
        start += len(unit.devices)
    placed = [_moved(unit, starts[unit.name]) for unit in units]
    schedule = "interleaved" if any(unit.chunks > 1 for unit in units) else "1f1b"
    return Plan(tuple(placed), microbatches, schedule)


def unit(
    modules: tuple[str, ...],
    dp: int,
    tp: int,
    layers: tuple[int, ...],
    recompute: str,
    chunks: int = 1,
    given: Given = ALONE,
    collectives: str = "reduce",
) -> UnitPlan:
    """A unit with devices counted from 0, named after its last module."""
    devices = tuple(range(dp * given.cp * tp * (len(layers) // chunks)))
    cut = (layers, (recompute,) * len(layers), chunks)
    return UnitPlan(modules[-1], modules, devices, dp, tp, *cut, given.cp, given.ep, collectives)


def layout_plan(problem: Problem, layout: Layout) -> Plan:
    """A plan that gives each module a unit of its own."""
    units = []
    for name, choice in layout.choices.items():
        table, way = problem.tables[name], choice.way
        chunks = int(table.chunks[way])
        cut = (table.layers[way], table.recompute[way], chunks)
        tp = int(table.tp[way])
        units.append(unit((name,), choice.dp, tp, *cut, table.given, problem.collectives_of(name, tp)))
    return place(units, layout.microbatches)


def _moved(unit: UnitPlan, start: int) -> UnitPlan:
    return dataclasses.replace(unit, devices=tuple(start + device for device in unit.devices))
