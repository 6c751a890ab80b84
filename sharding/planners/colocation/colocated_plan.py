"""The plan of a backbone's layout with pipeline replicas of the other modules on the same devices.

The policy `colocated` simulates these plans.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from sharding.planners.colocation.backbone_layouts import BackboneLayout, backbone_unit
from sharding.planners.colocation.replicated_layouts import ReplicatedLayout, replicated_unit
from sharding.planners.problem import PlanningProblem
from sharding.plans.plan import Plan
from sharding.schedules.colocation.colocated_replicas import assign_microbatches
from sharding.schedules.named.build import training_op_graph

SCHEDULE = "colocated"


def colocated_plan(
    problem: PlanningProblem,
    backbone: BackboneLayout,
    replicated: Sequence[ReplicatedLayout],
    slices: Mapping[str, int],
) -> Plan:
    """The plan, without the seconds of its stages; pipeline replicas take microbatches by turns.

    Args:
        problem: The problem.
        backbone: Layout of the backbone.
        replicated: Layouts of all other modules.
        slices: By module, into how many virtual stages each of its pipeline ranks is cut; 1 if left out.
    """
    host_unit = backbone_unit(problem, backbone)
    units = {host_unit.name: host_unit} | {
        layout.module: replicated_unit(problem, host_unit, layout, slices.get(layout.module, 1))
        for layout in replicated
    }
    return Plan(tuple(units[module] for module in problem.graph.names), backbone.microbatches, SCHEDULE)


def with_assigned_microbatches(problem: PlanningProblem, plan: Plan) -> Plan:
    """The plan with the division of the microbatches among pipeline replicas that makes its step short.

    Args:
        problem: The problem.
        plan: A plan with the seconds of its stages.
    """
    resolved = problem.resolve(plan)
    replicas_by_unit = assign_microbatches(training_op_graph(resolved, resolved.trained_stages))
    units = (unit.with_hints(replica_of_microbatch=replicas_by_unit.get(unit.name, ())) for unit in plan.units)
    return dataclasses.replace(plan, units=tuple(units))
