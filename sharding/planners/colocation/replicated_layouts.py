"""Layouts of an encoder or generator with pipeline replicas on a backbone's devices (Optimus, section 4.1).

The policy `colocated` chooses such a layout for each module besides the backbone.
"""

import dataclasses

import numpy as np
from jaxtyping import Int

from sharding.costs.cost_model import CostModel
from sharding.costs.node_placement import NodePlacement
from sharding.planners.colocation.backbone_layouts import BackboneLayout
from sharding.planners.layouts.placement import make_unit
from sharding.planners.problem import PlanningProblem
from sharding.planners.tables.module_table import ModuleTable
from sharding.plans.device_numbers import device_array
from sharding.plans.unit_plan import UnitPlan
from sharding.specs.layers.layer import RecomputePolicy


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplicatedLayout:
    """A layout of a module whose pipeline replicas take whole microbatches on the devices of a backbone's pipeline.

    Attributes:
        module: The module.
        tp: Tensor ranks; they divide the backbone's.
        pp: Pipeline ranks of a pipeline replica; they divide the backbone's.
        pipeline_replicas: Pipeline replicas on the devices of the backbone's pipeline: its pp * tp / (pp * tp) of the
        module.
        recompute: Recomputation policy.
        work: Seconds of all its forwards and backwards on the devices of the pipeline replica with the most
            microbatches.
        fill: Seconds of the forward and backward of one microbatch through a pipeline replica: nothing hides the first
            microbatch's forward and the last one's backward.
        once: Seconds of gathering its weights and reducing its gradients.
        least_bytes: Bytes on a device with the fewest microbatches in flight that keep a pipeline replica and the
            backbone busy.
    """

    module: str
    tp: int
    pp: int
    pipeline_replicas: int
    recompute: RecomputePolicy
    work: float
    fill: float
    once: float
    least_bytes: float

    @property
    def seconds(self) -> float:
        """Seconds that it adds to a step if nothing of it is hidden."""
        return self.work + self.fill + self.once


def replicated_layouts(problem: PlanningProblem, module: str, backbone: BackboneLayout) -> list[ReplicatedLayout]:
    """The layouts of a module that divide a backbone's, what adds the least first; none if no size divides it.

    Fewer pipeline ranks mean more pipeline replicas, whose weights each device then has more of, to gather and to
    reduce.
    """
    table = problem.module_tables[module]
    divides = (table.chunks == 1) & (backbone.tp % table.tp == 0) & (backbone.pp % table.pp == 0)
    pipeline_replicas = backbone.tp // table.tp * (backbone.pp // table.pp)
    candidates = np.flatnonzero(divides & (pipeline_replicas <= backbone.microbatches))
    layouts = _layouts(table, candidates, pipeline_replicas[candidates], backbone)
    return sorted(layouts, key=lambda layout: (layout.seconds, layout.least_bytes))


def _layouts(
    table: ModuleTable,
    candidates: Int[np.ndarray, " n"],
    pipeline_replicas: Int[np.ndarray, " n"],
    backbone: BackboneLayout,
) -> list[ReplicatedLayout]:
    rows = np.full(len(candidates), float(backbone.rows))
    slowest, fill = table.stage_seconds(candidates, rows)
    replica_microbatches = -(-backbone.microbatches // pipeline_replicas)
    replicas = backbone.dp * pipeline_replicas
    least = table.peak_bytes(candidates, rows, replicas, np.ones(len(candidates)), replica_microbatches)
    parameters = (table.parameters + table.experts)[candidates].max(axis=1, initial=0.0)
    trained = (table.trained + table.trained_experts)[candidates].max(axis=1, initial=0.0)
    seconds: dict[tuple[int, int, float, float], float] = {}  # recomputation changes none of these
    once = []
    for key in zip(
        table.tp[candidates].tolist(), replicas.tolist(), parameters.tolist(), trained.tolist(), strict=True
    ):
        if key not in seconds:
            seconds[key] = _collective_seconds(table.costs, *key)
        once.append(seconds[key])
    return [
        ReplicatedLayout(
            module=table.module.name,
            tp=int(table.tp[candidate]),
            pp=int(table.pp[candidate]),
            pipeline_replicas=int(pipeline_replicas[index]),
            recompute=table.recompute[candidate],
            work=float(replica_microbatches[index] * slowest[index]),
            fill=float(fill[index]),
            once=once[index],
            least_bytes=float(least[index]),
        )
        for index, candidate in enumerate(candidates.tolist())
    ]


def _collective_seconds(costs: CostModel, tp: int, replicas: int, parameters: float, trained: float) -> float:
    """Seconds of gathers and reductions, as if every node held equally many of the replicas."""
    per_node = min(replicas, max(1, costs.devices_per_node // tp))
    placed = NodePlacement(replicas, -(-replicas // per_node), per_node, per_node)
    return float(costs.gather_weights(parameters, placed) + costs.reduce_gradients(trained, placed))


def replicated_unit(
    problem: PlanningProblem, backbone: UnitPlan, layout: ReplicatedLayout, slices: int = 1
) -> UnitPlan:
    """The unit of a layout on the devices of a backbone.

    Args:
        problem: The problem.
        backbone: The unit of the backbone.
        layout: Layout of the module.
        slices: Into how many virtual stages each of its pipeline ranks is cut.
    """
    unit = make_unit(
        (layout.module,),
        dp=backbone.parallelism.dp,
        tp=layout.tp,
        layers=even_layers(problem.graph[layout.module].layer_count, layout.pp * slices),
        recompute=layout.recompute,
        chunks=slices,
        fixed_ranks=problem.fixed_ranks_of(layout.module),
        collectives=problem.collectives_of(layout.module, layout.tp),
    )
    return dataclasses.replace(
        unit,
        devices=pipeline_replica_devices(backbone, layout.pp, layout.tp),
        parallelism=dataclasses.replace(unit.parallelism, pipeline_replicas=layout.pipeline_replicas),
    )


def even_layers(count: int, stages: int) -> tuple[int, ...]:
    """Layers of stages that own as many as each other, or one more: the first ones."""
    least, rest = divmod(count, stages)
    return tuple(least + (stage < rest) for stage in range(stages))


def pipeline_replica_devices(backbone: UnitPlan, pp: int, tp: int) -> tuple[int, ...]:
    """Devices of a unit whose pipeline replicas fill a backbone's pipeline ranks.

    They are ordered by pipeline replica, stage, data and tensor rank.

    A pipeline replica is on `pp` consecutive pipeline ranks, and on `tp` consecutive tensor ranks of each replica
    there.

    Args:
        backbone: The unit of the backbone, without context-parallel ranks.
        pp: Pipeline ranks of a pipeline replica; they divide the backbone's.
        tp: Tensor ranks of a pipeline replica; they divide the backbone's.
    """
    by_rank = device_array(backbone.devices).reshape(
        backbone.pp // pp, pp, backbone.parallelism.dp, backbone.parallelism.tp // tp, tp
    )
    return tuple(by_rank.transpose(0, 3, 1, 2, 4).ravel().tolist())
