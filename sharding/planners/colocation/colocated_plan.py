"""The plan of a backbone's layout with copies of the other modules on the same devices."""

import dataclasses
from collections.abc import Mapping, Sequence

from sharding.planners.colocation.backbone_layouts import BackboneLayout
from sharding.planners.colocation.copied_layouts import CopiedLayout
from sharding.planners.placement import make_unit
from sharding.planners.problem import PlanningProblem
from sharding.plans.plan import Plan
from sharding.plans.unit_plan import UnitPlan

SCHEDULE = "colocated"


def colocated_plan(
    problem: PlanningProblem,
    backbone: BackboneLayout,
    copied: Sequence[CopiedLayout],
    slices: Mapping[str, int],
) -> Plan:
    """The plan, without the seconds of its stages.

    Args:
        problem: The problem.
        backbone: Layout of the backbone, whose devices are numbered by pipeline rank, data and tensor rank.
        copied: Layouts of all other modules.
        slices: By module, into how many virtual stages each of its pipeline ranks is cut; 1 if left out.
    """
    name = problem.graph.backbone.name
    own = make_unit(
        (name,),
        dp=backbone.dp,
        tp=backbone.tp,
        layers=backbone.layers,
        recompute=backbone.recompute,
        chunks=backbone.chunks,
        fixed_ranks=problem.fixed_ranks_of(name),
        collectives=problem.collectives_of(name, backbone.tp),
    )
    units = {name: own} | {
        layout.module: _copied_unit(problem, own, layout, slices.get(layout.module, 1)) for layout in copied
    }
    return Plan(tuple(units[module] for module in problem.graph.names), backbone.microbatches, SCHEDULE)


def _copied_unit(problem: PlanningProblem, backbone: UnitPlan, layout: CopiedLayout, slices: int) -> UnitPlan:
    layers = even_layers(problem.graph[layout.module].layer_count, layout.pp * slices)
    unit = make_unit(
        (layout.module,),
        dp=backbone.dp,
        tp=layout.tp,
        layers=layers,
        recompute=layout.recompute,
        chunks=slices,
        fixed_ranks=problem.fixed_ranks_of(layout.module),
        collectives=problem.collectives_of(layout.module, layout.tp),
    )
    devices = copy_devices(backbone, layout.pp, layout.tp)
    return _with_devices(unit, devices, layout.copies)


def _with_devices(unit: UnitPlan, devices: tuple[int, ...], copies: int) -> UnitPlan:
    return dataclasses.replace(unit, devices=devices, copies=copies)


def even_layers(count: int, stages: int) -> tuple[int, ...]:
    """Layers of stages that own as many as each other, or one more: the first ones."""
    least, rest = divmod(count, stages)
    return tuple(least + (stage < rest) for stage in range(stages))


def copy_devices(backbone: UnitPlan, pp: int, tp: int) -> tuple[int, ...]:
    """Devices of a unit whose copies fill a backbone's pipeline ranks, by copy, stage, data and tensor rank.

    A copy is on `pp` consecutive pipeline ranks, and on `tp` consecutive tensor ranks of each replica there.

    Args:
        backbone: The unit of the backbone.
        pp: Pipeline ranks of a copy; they divide the backbone's.
        tp: Tensor ranks of a copy; they divide the backbone's.
    """
    per_replica = backbone.replica_size
    size = tp * backbone.cp
    return tuple(
        device
        for first_rank in range(0, backbone.pp, pp)
        for first in range(0, per_replica, size)
        for rank in range(first_rank, first_rank + pp)
        for replica in range(backbone.dp)
        for device in backbone.rank_devices(rank)[replica * per_replica + first : replica * per_replica + first + size]
    )
