"""Fields that planners add to a layout's plan: microbatches in flight that fit, seconds of stages, capacities."""

import dataclasses

import numpy as np

from sharding.planners.capacities import with_capacities
from sharding.planners.layouts.backbone_search import most_extra_in_flight
from sharding.planners.layouts.disjoint_layout import DisjointLayout, ModuleChoice
from sharding.planners.layouts.placement import plan_of_layout
from sharding.planners.problem import PlanningProblem
from sharding.plans.plan import Plan
from sharding.plans.unit_plan import UnitPlan

MOST_EXTRA = 4
"""Microbatches; with more, the shortest simulated steps of DistTrain's models stay the same."""


def scheduled_plan(problem: PlanningProblem, layout: DisjointLayout) -> Plan:
    """The plan of a layout: in-flight limits as memory allows, capacities and, for chunks, the seconds of stages."""
    plan, extra = with_capacities(problem, plan_of_layout(problem, layout)), extra_microbatches(problem, layout)
    if any(unit.parallelism.chunks > 1 for unit in plan.units):
        plan = with_stage_seconds(problem, plan)
    units = tuple(unit.with_hints(extra_microbatches=extra[unit.name]) for unit in plan.units)
    return dataclasses.replace(plan, units=units)


def extra_microbatches(problem: PlanningProblem, layout: DisjointLayout) -> dict[str, int]:
    """By module, how many microbatches beyond the schedule's limits fit into the memory that the layout leaves.

    The modules that feed the backbone hold a microbatch for as long as the backbone does, so they get at least as many
    as it does, and all as many as the fullest of them holds. Generators return a microbatch before they take the next.
    """
    backbone, generators = problem.graph.backbone, generator_stages(problem, layout)
    backbone_choice = layout.choices[backbone.name]
    table = problem.module_tables[backbone.name]
    chunks = int(table.chunks[backbone_choice.candidate])
    downstream = float(table.downstream_stages_of_sources(np.array([backbone_choice.candidate]), float(generators))[0])
    sources = [module.name for module in problem.graph.modules if not module.inputs and not module.is_backbone]
    spare = [_spare(problem, backbone.name, backbone_choice, float(generators)) // chunks]
    spare += [_spare(problem, name, layout.choices[name], downstream) for name in sources]
    count = max(0, int(min(MOST_EXTRA, layout.microbatches - 1, *spare)))
    backbone_extra = int(most_extra_in_flight(table, np.array([backbone_choice.candidate]), generators, count)[0])
    return dict.fromkeys(problem.graph.names, 0) | dict.fromkeys(sources, count) | {backbone.name: backbone_extra}


def generator_stages(problem: PlanningProblem, layout: DisjointLayout) -> int:
    """Number of stages downstream of the backbone, the most that a generator has; 0 without generators."""
    tables = problem.module_tables
    depths = (
        int(tables[name].pp[choice.candidate]) for name, choice in layout.choices.items() if problem.is_generator(name)
    )
    return max(depths, default=0)


def _spare(problem: PlanningProblem, name: str, choice: ModuleChoice, downstream_stages: float) -> float:
    """How many more microbatches fit into the memory of a module's fullest stage, each in one of its chunks."""
    return problem.module_tables[name].spare_in_flight(
        choice.candidate, choice.rows, choice.dp, problem.cluster.usable_memory, downstream_stages
    )


def with_stage_seconds(problem: PlanningProblem, plan: Plan, communication: bool = False) -> Plan:
    """The plan with the seconds of every stage's forward and backward of a microbatch of mean rows, to three digits.

    Args:
        problem: The problem.
        plan: A plan without microbatches in flight beyond the schedule's limits.
        communication: Whether the plan also gets the seconds among them in which devices only wait for collectives.
    """
    stages = problem.mean_microbatch_costs(plan)

    def mean_seconds(unit: UnitPlan, field: str) -> tuple[float, ...]:
        means = (np.mean(getattr(stages[unit.name, number], field)) for number in range(unit.stage_count))
        return tuple(float(f"{mean:.3g}") for mean in means)

    def with_seconds(unit: UnitPlan) -> UnitPlan:
        fields: dict[str, tuple[float, ...]] = {}
        for kind in ("forward", "backward"):
            fields[f"{kind}_seconds"] = seconds = mean_seconds(unit, kind)
            if communication:
                waits = mean_seconds(unit, f"{kind}_communication")
                fields[f"{kind}_communication"] = tuple(map(min, waits, seconds))  # both are rounded
        return unit.with_hints(**fields)

    return dataclasses.replace(plan, units=tuple(map(with_seconds, plan.units)))
