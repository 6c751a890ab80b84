"""A training step of mmjax: the engine on one device, with its own optimizer step.

Batches are on the device before the clock starts, for every framework: how fast they can be made is another question.
The backbone's share of a step is timed op by op in a few extra steps, waiting for each op: it includes its casts to
bfloat16, its share of the optimizer step, and the cost of waiting. Which microbatches and recomputation fit the device
is estimated before anything is compiled.
"""

import collections
import concurrent.futures
import dataclasses
import json
import math
import pathlib
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from benchmarks.gpu import batches as gpu_batches
from benchmarks.gpu.parts import BATCHES, TRAINED, WEIGHTS, PartRun
from benchmarks.gpu.sizes import BenchmarkSizes
from configs.common.errors import UserError
from configs.optimizer import OptimizerConfig
from data.data_config import RowCapacity
from data.packing.global_batch import GlobalBatch, build_global_batch
from data.packing.rows.packed_rows import pack_rows
from data.samples.image_format import PatchFormat, image_item
from data.samples.sample import Sample
from data.samples.sample_format import SampleFormat
from data.samples.sample_metadata import SampleMetadata
from mmjax.models.structure.module import Module, Piece
from mmjax.models.structure.parameters import place_host_array
from mmjax.training.engine.engine import Engine, HostBatch
from mmjax.training.engine.settings import EngineSettings
from mmjax.training.metrics.flops import peak_flops
from mmjax.weights.export import export_checkpoint, export_target_of_type
from mmjax.weights.initialization import SeedInitializer
from sharding.costs.memory import GRADIENT_BYTES
from sharding.costs.optimizer_memory import OptimizerMemory
from sharding.plans.plan import Plan, single_device_plan
from sharding.plans.resolved.stage_graph import StageId
from sharding.runtime.pipeline import TrainState
from sharding.schedules.ops import PipelineOp
from sharding.specs.modules import module_graph
from sharding.trees import Tree

WARM_UP_STEPS, OP_TIMED_STEPS = 2, 2
MFU_GOAL = 0.55
OPTIMIZER = OptimizerConfig(learning_rate=1e-5, warmup_steps=0, max_grad_norm=1.0)
MEMORY_SHARE = 0.85
"""Share of the memory that the estimate may take: of what programs need while they run it counts only the logits."""
LOGITS_ARRAYS = 3  # in float32: the saved ones, their gradient, and one temporary


def rows(part: PartRun) -> Iterator[dict[str, Any]]:
    """Tokens per second and MFU of a step; writes its weights and figures to the shared folder."""
    sizes = part.sizes
    steps = gpu_batches.load_steps(part.folder / BATCHES)
    batches = host_batches(steps, sizes)
    first_step, description = _first_step_that_fits(part, batches)
    engine, state, placed = first_step.engine, first_step.state, first_step.batches
    yield part.row("mmjax: loss of the first step", first_step.loss, note=description)
    for number in range(1, WARM_UP_STEPS):
        state, _ = _step(engine, state, placed[number % len(placed)])
    seconds = []
    for number in range(sizes.steps):
        if number and part.seconds_left < 5:
            break
        begin = part.clock()
        state, _ = _step(engine, state, placed[number % len(placed)])
        seconds.append(part.clock() - begin)
    tokens = [gpu_batches.useful_tokens(step, sizes) for step in steps]
    flops = [gpu_batches.step_flops(step, sizes) for step in steps]
    rates = [tokens[n % len(steps)] / step_seconds for n, step_seconds in enumerate(seconds)]
    tokens_per_second = statistics.median(rates)
    figures = {
        "loss": first_step.loss,
        "tokens_per_second": tokens_per_second,
        "microbatches": engine.plan.microbatches,
    }
    (part.folder / TRAINED).write_text(json.dumps(figures))
    padding = 1 - np.mean(tokens) / (sizes.rows * sizes.tokens)
    yield part.row(
        "mmjax: step, tokens/s", tokens_per_second, note=f"rows {padding:.1%} padding; {description}{part.clock_note}"
    )
    kind = engine.devices[0].device_kind
    yield mfu_row(part, "mmjax: MFU of the step", flops, seconds, kind)
    backbone = sizes.model.backbone.name
    backbone_seconds = []
    for number in range(OP_TIMED_STEPS):
        stopwatch = _UnitStopwatch(backbone)
        state, _ = _step(engine, state, placed[number % len(placed)], stopwatch)
        backbone_seconds.append(stopwatch.seconds)
    backbone_flops = [{backbone: by_module[backbone]} for by_module in flops]
    note = "its ops one by one, with its optimizer step"
    yield mfu_row(part, "mmjax: MFU of the backbone's share", backbone_flops, backbone_seconds, kind, MFU_GOAL, note)


def mfu_row(
    part: PartRun,
    name: str,
    flops: Sequence[dict[str, float]],
    seconds: Sequence[float],
    kind: str,
    goal: float | None = None,
    note: str = "",
) -> dict[str, Any]:
    """A row with the median MFU of some steps; without a value where the device's peak is not known.

    Args:
        part, name, goal, note: The row's fields.
        flops: FLOPs by module, of the batches that the steps use in turn.
        seconds: Seconds of each step.
        kind: The device kind.
    """
    peak = peak_flops(kind)
    if peak is None:
        return part.row(name, None, goal, f"the peak of {kind} is not known (configs/clusters.py)")
    rates = [sum(flops[n % len(flops)].values()) / step_seconds for n, step_seconds in enumerate(seconds)]
    return part.row(name, statistics.median(rates) / peak, goal, note or f"of {peak / 1e12:.0f} TFLOP/s")


def host_batches(steps: Sequence[gpu_batches.Step], sizes: BenchmarkSizes) -> list[GlobalBatch]:
    """The arrays of the steps for mmjax, all of the same shapes."""
    rows = [row for step in steps for row in step]
    patches = (1 + gpu_batches.picture_tokens(sizes)) * max(sum(sample.pictures for sample in row) for row in rows)
    patches += -patches % 8  # fast attention needs whole multiples
    sample_format = SampleFormat.for_model(sizes.model, {"patches": patches})
    capacity = RowCapacity(tokens=sizes.tokens, lengths={"patches": patches}, samples=max(map(len, rows)))
    loaded = ([[_load_sample(sample, sizes, sample_format) for sample in row] for row in step] for step in steps)
    return [build_global_batch(pack_rows(rows, capacity, sample_format), sizes.model, sample_format) for rows in loaded]


def _load_sample(
    description: gpu_batches.SampleDescription, sizes: BenchmarkSizes, sample_format: SampleFormat
) -> Sample:
    shape, items, patch_format = (sizes.side, sizes.side), [], sample_format.encoder_of(PatchFormat)
    if description.pictures and patch_format:
        items.append(image_item(lambda: gpu_batches.sample_picture(description, sizes), shape, patch_format))
    layout = gpu_batches.sample_layout(description, sizes)
    return SampleMetadata(kind="llava", layout=layout, sample_format=sample_format, items=items).load(
        description.number
    )


def fitting_engines(sizes: BenchmarkSizes, example: HostBatch, memory: float) -> Iterator[tuple[Engine, str]]:
    """Engines from the quickest to the most frugal, without engines that will not fit, and each in words.

    Args:
        sizes: The sizes of the model and its rows.
        example: Arrays of a global batch.
        memory: Bytes of the device.
    """
    few, more = sizes.microbatches
    choices = [(few, "none"), (more, "none"), (more, "selective"), (more, "full")]
    for number, (microbatches, recompute) in enumerate(choices):
        plan = one_device_plan(sizes, microbatches, recompute)
        engine = Engine(sizes.model, plan, example, EngineSettings(OPTIMIZER, steps=1000), jax.devices()[:1])
        if needed_bytes(engine, sizes) <= MEMORY_SHARE * memory or number == len(choices) - 1:
            yield engine, f"{microbatches} microbatches, recompute {recompute}, float32 masters"


def one_device_plan(sizes: BenchmarkSizes, microbatches: int, recompute: str) -> Plan:
    """The plan of both modules on one device."""
    plan = single_device_plan(module_graph(sizes.model), microbatches)
    units = tuple(dataclasses.replace(unit, recompute=(recompute,)) for unit in plan.units)
    return dataclasses.replace(plan, units=units)


def needed_bytes(engine: Engine, sizes: BenchmarkSizes) -> float:
    """State, new gradients before they are added, residuals, and logits of one microbatch.

    The encoder has residuals of two microbatches at a time, since the schedule runs it one microbatch ahead.
    """
    parameters = sum(module.parameter_count for module in engine.graph.modules)
    kept = OptimizerMemory.of(OPTIMIZER).state_bytes(parameters, parameters)
    state = kept + parameters * (engine.config.element_bytes + 2 * GRADIENT_BYTES)
    microbatches_in_flight = {engine.config.backbone.name: 1}
    residuals = sum(
        microbatches_in_flight.get(stage_id[0], 2) * _residual_bytes(engine, stage_id)
        for stage_id in engine.executor.stages
    )
    tokens = sizes.rows // engine.plan.microbatches * sizes.tokens
    return state + residuals + LOGITS_ARRAYS * 4 * tokens * sizes.model.backbone.vocabulary


def _residual_bytes(engine: Engine, stage_id: StageId) -> int:
    programs = engine.executor.stages[stage_id].programs
    result = jax.eval_shape(programs.forward, *programs.operand_shapes, jax.eval_shape(programs.zero_losses))
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in result.residuals)


@dataclasses.dataclass(frozen=True)
class _FirstStep:
    """An engine after its first step."""

    engine: Engine
    state: TrainState
    batches: list
    loss: float


def _first_step_that_fits(part: PartRun, batches: Sequence[GlobalBatch]) -> tuple[_FirstStep, str]:
    """The first step of the quickest engine that fits the device, and the engine in words."""
    memory = (jax.devices()[0].memory_stats() or {}).get("bytes_limit", math.inf)
    reason = None
    for engine, description in fitting_engines(part.sizes, batches[0].arrays, memory):
        try:
            return _first_step(part, engine, batches), description
        except jax.errors.JaxRuntimeError as error:  # the estimate was too low; the next engine takes less memory
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            reason = str(error)
    raise UserError(f"the step does not fit {memory / 1e9:.0f} GB: {reason}")


def _first_step(part: PartRun, engine: Engine, batches: Sequence[GlobalBatch]) -> _FirstStep:
    state = engine.initial_state(_ParallelInitializer(engine))
    if not (part.folder / WEIGHTS).exists():
        _export(engine, state, part.folder / WEIGHTS)
    (part.folder / TRAINED).write_text(json.dumps({"microbatches": engine.plan.microbatches}))
    placed = [engine.place_batch(batch.arrays, 0) for batch in batches]
    state, loss = _step(engine, state, placed[0])
    return _FirstStep(engine, state, placed, loss)


class _ParallelInitializer:
    """Initial values from the seed, of all layers at once, by as many threads as there are cores."""

    def __init__(self, engine: Engine) -> None:
        values, threads = SeedInitializer(0), concurrent.futures.ThreadPoolExecutor()
        self._layers = {
            (module.name, piece.name, layer): threads.submit(values.init_layer, module, piece, layer)
            for module in engine.modules
            for piece in module.pieces
            for layer in range(piece.layers or 1)
        }

    def init_layer(self, module: Module, piece: Piece, layer: int, shardings: Tree | None = None) -> Tree:
        """See `ParameterInitializer`; every layer can be taken once."""
        values = self._layers.pop((module.name, piece.name, layer)).result()
        return values if shardings is None else jax.tree.map(place_host_array, values, shardings)


def _step(engine: Engine, state: TrainState, batch: Any, callback: Any = None) -> tuple[TrainState, float]:
    """The state after a step that is waited for, and its loss."""
    state, summary = engine.executor.step(state, batch, callback)
    jax.block_until_ready(vars(state))
    return state, float(np.asarray(summary.losses).sum())


class _UnitStopwatch:
    """Adds up the seconds of a unit's ops."""

    def __init__(self, unit: str) -> None:
        self._unit, self._begin, self.seconds = unit, time.perf_counter(), 0.0

    def __call__(self, op: PipelineOp, outputs: Any) -> None:
        jax.block_until_ready(outputs)
        now = time.perf_counter()
        if op.unit == self._unit and not op.target_unit:
            self.seconds += now - self._begin
        jax.block_until_ready(outputs)  # visiting all arrays takes time by itself, which is subtracted
        visited = time.perf_counter()
        if op.unit == self._unit and not op.target_unit:
            self.seconds -= visited - now
        self._begin = visited


def _export(engine: Engine, state: TrainState, folder: pathlib.Path) -> None:
    """Exports the master weights as transformers' LLaVA, in the compute precision."""
    layers = collections.ChainMap(*(dict(tree) for tree in state.master_weights.values()))
    target = export_target_of_type("llava", engine.config, "model", engine.config.dtype)
    export_checkpoint(
        target, lambda module, piece, layer: jax.device_get(layers[f"{module}/{piece}"][layer]), folder, 10**11
    )
