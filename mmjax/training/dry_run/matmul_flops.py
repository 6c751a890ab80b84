"""FLOPs that the model's matmuls with weights take on a device, to compare with the matmuls of compiled programs."""

from collections.abc import Mapping

from data.packing.phases.phase_rows import PhaseRows, RowValues
from sharding.costs.own_rows import item_values
from sharding.plans.resolved.resolved_plan import ResolvedPlan
from sharding.plans.resolved.stage_graph import StageId
from sharding.specs.layers.layer import MATMUL_KINDS, LoadColumn, Loads
from sharding.specs.layers.recomputed_kernels import RECOMPUTED_KERNELS
from sharding.specs.row_load_statistics import RowLoadStatistics


def model_flops(resolved: ResolvedPlan, stage: StageId, loads: Mapping[str, Loads], kind: str) -> float:
    """FLOPs of a stage's matmuls with weights in one program, on each of the devices that run a microbatch.

    Attention is left out, whose kernels say no shapes, and recomputed forwards count.

    Args:
        resolved: The plan.
        stage: The stage.
        loads: By module, the load of a microbatch whose rows are full.
        kind: The program: `forward`, `backward`, `dgrad`, `wgrad`, or `step` for forward and backward together.
    """
    unit = next(unit for unit in resolved.plan.units if unit.name == stage[0])
    policies, flops = list(unit.program_recompute(stage[1])), 0.0
    for run in resolved.layers[stage]:
        owned, policies = policies[: run.last - run.first], policies[run.last - run.first :]
        again = sum("matmul" in RECOMPUTED_KERNELS[policy] for policy in owned) / len(owned)
        for layer, count, gradients in resolved.required_gradients.of_layers(run.module, run.first, run.last):
            once = sum(
                float(kernel.flops.evaluate(loads[run.module]))
                for kernel in layer.kernels
                if kernel.kind in MATMUL_KINDS and kernel.weights
            )
            back = len(gradients) + again if gradients else 0
            passes = {
                "forward": 1,
                "backward": back,
                "dgrad": back - ("wgrad" in gradients),
                "wgrad": "wgrad" in gradients,
                "step": 1 + back,
            }
            flops += count * once * passes[kind]
    replicas = unit.parallelism.pipeline_replicas
    return flops / (resolved.devices[stage].size // replicas)


def full_loads(
    resolved: ResolvedPlan,
    data: RowLoadStatistics,
    rows: int,
    values: Mapping[str, RowValues],
    phases: Mapping[str, PhaseRows],
    capacity: int,
) -> dict[str, Loads]:
    """By module, the load of a microbatch whose rows are full, of items of the mean size.

    Args:
        resolved: The plan.
        data: Loads of rows, from which the mean sizes of items come.
        rows: Rows of a microbatch of the global batch.
        values: By module, the values that such a row holds.
        phases: The modules with rows of their own.
        capacity: Number of the capacity of such rows; the largest where there are fewer.
    """
    loads = {}
    for module in resolved.graph.modules:
        mean, held = data.mean_load(module.name), rows * values[module.name].count
        if phase := phases.get(module.name):
            held = phase.rows * phase.values_per_slot * phase.capacities[min(capacity, len(phase.capacities) - 1)]
        of_mean = mean[LoadColumn.TOKENS] if module.is_backbone else float(item_values(mean[None], module)[0])
        loads[module.name] = mean * (held / of_mean if of_mean else 0.0)
    return loads
