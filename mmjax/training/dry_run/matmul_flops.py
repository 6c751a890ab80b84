"""FLOPs that the model's matmuls with weights take on a device, to compare with the matmuls of compiled programs."""

from collections.abc import Mapping

from sharding.plans.resolved.resolved_plan import ResolvedPlan
from sharding.plans.resolved.stage_graph import StageId
from sharding.specs.layers.layer import MATMUL_KINDS, Loads
from sharding.specs.layers.recomputed_kernels import runs_again


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
        for layer, count, gradients in resolved.required_gradients.of_layers(run.module, run.first, run.last):
            for kernel in layer.kernels:
                if kernel.kind not in MATMUL_KINDS or not kernel.weights:
                    continue
                again = sum(runs_again(kernel, policy) for policy in owned) / len(owned)
                back = len(gradients) + again if gradients else 0
                passes = {
                    "forward": 1,
                    "backward": back,
                    "dgrad": back - ("wgrad" in gradients),
                    "wgrad": "wgrad" in gradients,
                    "step": 1 + back,
                }
                flops += count * float(kernel.flops.evaluate(loads[run.module])) * passes[kind]
    replicas = unit.parallelism.pipeline_replicas
    return flops / (resolved.devices[stage].size // replicas)
