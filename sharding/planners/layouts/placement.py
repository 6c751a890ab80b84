"""Units and plans on consecutive devices.

Most policies make their plans by these functions.
"""

import dataclasses
from collections.abc import Sequence

from sharding.planners.layouts.disjoint_layout import DisjointLayout, ModuleChoice
from sharding.planners.problem import PlanningProblem
from sharding.planners.tables.fixed_ranks import SINGLE_RANKS, FixedRanks
from sharding.plans.device_numbers import shifted
from sharding.plans.parallelism import CollectivesName, Parallelism
from sharding.plans.plan import Plan
from sharding.plans.unit_plan import UnitPlan
from sharding.specs.layers.layer import RecomputePolicy


def place_units(units: Sequence[UnitPlan], microbatches: int) -> Plan:
    """A plan of units, whose devices are numbered from 0 each, on consecutive devices.

    Units with larger replicas get the first devices: where tp times cp divides the devices of a node, none of their
    groups then spans two nodes.
    """
    first_device, count = {}, 0
    for unit in sorted(units, key=lambda unit: -unit.parallelism.replica_size):
        first_device[unit.name] = count
        count += len(unit.devices)
    placed = [_move(unit, first_device[unit.name]) for unit in units]
    schedule = "interleaved" if any(unit.parallelism.chunks > 1 for unit in units) else "1f1b"
    return Plan(tuple(placed), microbatches, schedule)


def make_unit(
    modules: tuple[str, ...],
    *,
    dp: int,
    tp: int,
    layers: tuple[int, ...],
    recompute: RecomputePolicy,
    chunks: int = 1,
    fixed_ranks: FixedRanks = SINGLE_RANKS,
    collectives: CollectivesName = "all_reduce",
    rows: int = 0,
) -> UnitPlan:
    """A unit with devices numbered from 0 and one recomputation policy, named after its last module."""
    count = dp * fixed_ranks.cp * tp * (len(layers) // chunks)
    return UnitPlan(
        modules[-1],
        modules,
        range(count),
        layers=layers,
        recompute=(recompute,) * len(layers),
        phase_rows=rows,
        parallelism=Parallelism(
            dp=dp, tp=tp, chunks=chunks, cp=fixed_ranks.cp, ep=fixed_ranks.ep, collectives=collectives
        ),
    )


def plan_of_layout(problem: PlanningProblem, layout: DisjointLayout) -> Plan:
    """A plan that gives each module a unit of its own."""
    return place_units(
        [unit_of_choice(problem, name, choice) for name, choice in layout.choices.items()], layout.microbatches
    )


def unit_of_choice(problem: PlanningProblem, name: str, choice: ModuleChoice) -> UnitPlan:
    """A unit of one module, with devices numbered from 0."""
    table, candidate = problem.module_tables[name], choice.candidate
    tp = int(table.tp[candidate])
    return make_unit(
        (name,),
        dp=choice.dp,
        tp=tp,
        layers=table.layers[candidate],
        recompute=table.recompute[candidate],
        chunks=int(table.chunks[candidate]),
        fixed_ranks=table.fixed_ranks,
        collectives=problem.collectives_of(name, tp),
        rows=choice.dp if choice.dealt else 0,
    )


def _move(unit: UnitPlan, first_device: int) -> UnitPlan:
    return dataclasses.replace(unit, devices=shifted(unit.devices, first_device))
