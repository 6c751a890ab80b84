"""Layouts of an encoder or generator that is copied beside a backbone's pipeline (Optimus, section 4.1)."""

import dataclasses

import numpy as np

from sharding.planners.colocation.backbone_layouts import BackboneLayout, backbone_unit
from sharding.planners.placement import make_unit
from sharding.planners.problem import PlanningProblem
from sharding.plans.unit_plan import UnitPlan
from sharding.specs.layer import RecomputePolicy


@dataclasses.dataclass(frozen=True, kw_only=True)
class CopiedLayout:
    """A layout of a module whose copies take whole microbatches on the devices of a backbone's pipeline.

    Attributes:
        module: The module.
        tp: Tensor ranks; they divide the backbone's.
        pp: Pipeline ranks of a copy; they divide the backbone's.
        copies: Copies on the devices of the backbone's pipeline: its pp * tp / (pp * tp) of the module.
        recompute: Recomputation policy.
        work: Seconds of all its forwards and backwards on the devices of the copy with the most microbatches.
        once: Seconds of gathering its weights and reducing its gradients.
        least_bytes: Bytes on a device with the fewest microbatches in flight that keep a copy and the backbone busy.
    """

    module: str
    tp: int
    pp: int
    copies: int
    recompute: RecomputePolicy
    work: float
    once: float
    least_bytes: float

    @property
    def seconds(self) -> float:
        """What it adds to a step if nothing of it is hidden."""
        return self.work + self.once


OnceSeconds = dict[tuple[str | int, ...], float]
"""Seconds of gathering weights and reducing gradients, by module and by all sizes that they depend on."""


def copied_layouts(
    problem: PlanningProblem, module: str, backbone: BackboneLayout, once: OnceSeconds
) -> list[CopiedLayout]:
    """The layouts of a module that divide a backbone's, what adds the least first; none if no size divides it.

    Fewer pipeline ranks mean more copies, whose weights each device then has more of, to gather and to reduce.

    Args:
        problem: The problem.
        module: The module.
        backbone: Layout of the backbone.
        once: What earlier calls found for this problem; extended.
    """
    table, unit = problem.module_tables[module], backbone_unit(problem, backbone)
    layouts = []
    for candidate in np.flatnonzero(table.chunks == 1).tolist():
        tp, pp = int(table.tp[candidate]), int(table.pp[candidate])
        if backbone.tp % tp or backbone.pp % pp:
            continue
        copies = backbone.tp // tp * (backbone.pp // pp)
        if copies <= backbone.microbatches:
            layouts.append(_layout(problem, module, candidate, backbone, unit, once))
    return sorted(layouts, key=lambda layout: (layout.seconds, layout.least_bytes))


def _layout(
    problem: PlanningProblem,
    module: str,
    candidate: int,
    backbone: BackboneLayout,
    of_backbone: UnitPlan,
    once: OnceSeconds,
) -> CopiedLayout:
    table = problem.module_tables[module]
    tp, pp = int(table.tp[candidate]), int(table.pp[candidate])
    copies = backbone.tp // tp * (backbone.pp // pp)
    one, rows = np.array([candidate]), np.array([float(backbone.rows)])
    slowest, _ = table.stage_seconds(one, rows)
    of_copy = -(-backbone.microbatches // copies)
    least = table.peak_bytes(one, rows, np.array([backbone.dp * copies]), np.ones(1), np.array([of_copy]))
    layout = CopiedLayout(
        module=module,
        tp=tp,
        pp=pp,
        copies=copies,
        recompute=table.recompute[candidate],
        work=of_copy * float(slowest[0]),
        once=0.0,
        least_bytes=float(least[0]),
    )
    key = (module, tp, pp, backbone.tp, backbone.pp, backbone.dp)
    if key not in once:
        stages = problem.unit_work(copied_unit(problem, of_backbone, layout), backbone.microbatches)
        once[key] = max(stage.gather + stage.reduce for stage in stages)
    return dataclasses.replace(layout, once=once[key])


def copied_unit(problem: PlanningProblem, backbone: UnitPlan, layout: CopiedLayout, slices: int = 1) -> UnitPlan:
    """The unit of a layout on the devices of a backbone.

    Args:
        problem: The problem.
        backbone: The unit of the backbone.
        layout: Layout of the module.
        slices: Into how many virtual stages each of its pipeline ranks is cut.
    """
    unit = make_unit(
        (layout.module,),
        dp=backbone.dp,
        tp=layout.tp,
        layers=even_layers(problem.graph[layout.module].layer_count, layout.pp * slices),
        recompute=layout.recompute,
        chunks=slices,
        fixed_ranks=problem.fixed_ranks_of(layout.module),
        collectives=problem.collectives_of(layout.module, layout.tp),
    )
    return dataclasses.replace(unit, devices=copy_devices(backbone, layout.pp, layout.tp), copies=layout.copies)


def even_layers(count: int, stages: int) -> tuple[int, ...]:
    """Layers of stages that own as many as each other, or one more: the first ones."""
    least, rest = divmod(count, stages)
    return tuple(least + (stage < rest) for stage in range(stages))


def copy_devices(backbone: UnitPlan, pp: int, tp: int) -> tuple[int, ...]:
    """Devices of a unit whose copies fill a backbone's pipeline ranks, by copy, stage, data and tensor rank.

    A copy is on `pp` consecutive pipeline ranks, and on `tp` consecutive tensor ranks of each replica there.

    Args:
        backbone: The unit of the backbone, without context-parallel ranks.
        pp: Pipeline ranks of a copy; they divide the backbone's.
        tp: Tensor ranks of a copy; they divide the backbone's.
    """
    by_rank = np.array(backbone.devices).reshape(backbone.pp // pp, pp, backbone.dp, backbone.tp // tp, tp)
    return tuple(by_rank.transpose(0, 3, 1, 2, 4).ravel().tolist())
