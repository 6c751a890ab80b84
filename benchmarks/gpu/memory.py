"""Which microbatches and recomputation of the step of `benchmarks.gpu` fit a device, told before compiling."""

import dataclasses
import math
from collections.abc import Iterator, Sequence

import jax

from benchmarks.gpu.sizes import BenchmarkSizes
from configs.optimizer import OptimizerConfig
from mmjax.training.engine.engine import Engine, HostBatch
from mmjax.training.engine.settings import EngineSettings
from sharding.costs.memory import GRADIENT_BYTES, MASTER_BYTES, MOMENT_BYTES
from sharding.plans.plan import Plan, single_device_plan
from sharding.specs.modules import module_graph

OPTIMIZER = OptimizerConfig(learning_rate=1e-5, warmup_steps=0, max_grad_norm=1.0)
SAFE = 0.85
"""Share of the memory that the estimate may take: it leaves out what programs need while they run, but for logits."""
LOGITS = 3  # float32 arrays of them: those kept, their gradient, and one on the way


def fitting_engines(sizes: BenchmarkSizes, example: HostBatch, memory: float) -> Iterator[tuple[Engine, str]]:
    """Engines from the quickest to the most frugal, without those that will not fit; and what each is, in words.

    Args:
        sizes: Of the model and its rows.
        example: A global batch's arrays.
        memory: Bytes of the device.
    """
    few, many = sizes.microbatches
    choices = [(few, "none"), (many, "none"), (many, "selective"), (many, "full")]
    for number, (microbatches, recompute) in enumerate(choices):
        plan = one_device_plan(sizes, microbatches, recompute)
        engine = Engine(sizes.model, plan, example, EngineSettings(OPTIMIZER, steps=1000), jax.devices()[:1])
        if needed_bytes(engine, sizes) <= SAFE * memory or number == len(choices) - 1:
            yield engine, f"{microbatches} microbatches, recompute {recompute}, float32 masters"


def one_device_plan(sizes: BenchmarkSizes, microbatches: int, recompute: str) -> Plan:
    """Both modules on one device."""
    alone = single_device_plan(module_graph(sizes.model), microbatches)
    units = tuple(dataclasses.replace(unit, recompute=(recompute,)) for unit in alone.units)
    return dataclasses.replace(alone, units=units)


def needed_bytes(engine: Engine, sizes: BenchmarkSizes) -> float:
    """State, gradients once more before they are added, residuals and logits of one microbatch.

    Of the encoder's residuals two microbatches' are there at a time: the schedule is one ahead.
    """
    parameters = sum(module.parameter_count for module in engine.graph.modules)
    state = parameters * (engine.config.element_bytes + MASTER_BYTES + MOMENT_BYTES + 2 * GRADIENT_BYTES)
    ahead = {engine.config.backbone.name: 1}
    kept = sum(ahead.get(node[0], 2) * _residual_bytes(engine, node) for node in engine.stage_layouts)
    tokens = sizes.rows // engine.plan.microbatches * sizes.tokens
    return state + kept + LOGITS * 4 * tokens * sizes.model.backbone.vocabulary


def _residual_bytes(engine: Engine, node: tuple[str, int]) -> int:
    programs = engine.executor.stages[node].programs
    losses = jax.eval_shape(programs.zero_losses)
    _, kept, _ = jax.eval_shape(programs.forward, *programs.operand_shapes, losses)
    return _bytes(kept)


def _bytes(leaves: Sequence[jax.ShapeDtypeStruct]) -> int:
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)
