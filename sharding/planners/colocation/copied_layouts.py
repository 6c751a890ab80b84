"""Layouts of an encoder or generator that is copied beside a backbone's pipeline (Optimus, section 4.1)."""

import dataclasses

import numpy as np

from sharding.planners.colocation.backbone_layouts import BackboneLayout
from sharding.planners.problem import PlanningProblem
from sharding.planners.tables.module_table import ModuleTable
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
        least_bytes: Bytes on a device with the fewest microbatches in flight that keep a copy and the backbone busy.
    """

    module: str
    tp: int
    pp: int
    copies: int
    recompute: RecomputePolicy
    work: float
    least_bytes: float


def copied_layouts(problem: PlanningProblem, module: str, backbone: BackboneLayout) -> list[CopiedLayout]:
    """The layouts of a module that divide a backbone's; none if no size divides it.

    First come those whose copies are on exactly the devices of a pipeline rank: no microbatch passes between ranks, and
    ops can be bundled with the backbone's. Then the least work comes first.
    """
    table = problem.module_tables[module]
    layouts = []
    for candidate in np.flatnonzero(table.chunks == 1).tolist():
        tp, pp = int(table.tp[candidate]), int(table.pp[candidate])
        if backbone.tp % tp or backbone.pp % pp:
            continue
        copies = backbone.tp // tp * (backbone.pp // pp)
        if copies <= backbone.microbatches:
            layouts.append(_layout(table, candidate, copies, backbone))
    whole_rank = (backbone.tp, 1)
    return sorted(layouts, key=lambda of: ((of.tp, of.pp) != whole_rank, of.work, of.least_bytes))


def _layout(table: ModuleTable, candidate: int, copies: int, backbone: BackboneLayout) -> CopiedLayout:
    one, rows = np.array([candidate]), np.array([float(backbone.rows)])
    slowest, _ = table.stage_seconds(one, rows)
    of_copy = -(-backbone.microbatches // copies)
    least = table.peak_bytes(one, rows, np.array([backbone.dp * copies]), np.ones(1), np.array([of_copy]))
    return CopiedLayout(
        module=table.module.name,
        tp=int(table.tp[candidate]),
        pp=int(table.pp[candidate]),
        copies=copies,
        recompute=table.recompute[candidate],
        work=of_copy * float(slowest[0]),
        least_bytes=float(least[0]),
    )
