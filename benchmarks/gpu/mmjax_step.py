"""A training step of mmjax for `benchmarks.gpu`: the engine on one device, with its own optimizer step.

Batches lie on the device before the clock starts, for every framework: how fast they can be made is another question.
The backbone's share of a step is timed op by op, each waited for, in a few steps of their own: its casts to bfloat16
and its part of the optimizer step are in it, and so is what waiting costs.
"""

import collections
import concurrent.futures
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
from benchmarks.gpu.memory import fitting_engines
from benchmarks.gpu.parts import BATCHES, TRAINED, WEIGHTS, PartRun
from benchmarks.gpu.sizes import BenchmarkSizes
from configs.errors import UserError
from data.data_config import RowCapacity
from data.packing.global_batch import GlobalBatch, build_global_batch
from data.packing.packed_rows import pack_rows
from data.samples.media_items import image_item
from data.samples.sample import Sample
from data.samples.sample_format import SampleFormat
from data.samples.sample_metadata import SampleMetadata
from mmjax.models.structure.module import Module, Piece
from mmjax.models.structure.parameters import place_host_array
from mmjax.training.engine.engine import Engine
from mmjax.training.metrics.flops import peak_flops
from mmjax.weights.export import export_checkpoint, export_target_of_type
from mmjax.weights.initialization import SeedInitializer
from sharding.runtime.executor import TrainState
from sharding.schedules.ops import PipelineOp
from sharding.trees import Tree

WARM_UP, WATCHED = 2, 2
MFU_GOAL = 0.55


def rows(task: PartRun) -> Iterator[dict[str, Any]]:
    """The step's tokens a second and MFU; leaves its weights and figures in the folder."""
    sizes = task.sizes
    steps = gpu_batches.load_steps(task.folder / BATCHES)
    batches = host_batches(steps, sizes)
    engine, state, placed, first, how = _started(task, batches)
    yield task.row("mmjax: loss of the first step", first, note=how)
    for number in range(1, WARM_UP):
        state, _ = _step(engine, state, placed[number % len(placed)])
    seconds = []
    for number in range(sizes.steps):
        if number and task.seconds_left < 5:
            break
        begin = time.perf_counter()
        state, _ = _step(engine, state, placed[number % len(placed)])
        seconds.append(time.perf_counter() - begin)
    tokens = [gpu_batches.useful_tokens(step, sizes) for step in steps]
    flops = [gpu_batches.step_flops(step, sizes) for step in steps]
    rates = [tokens[n % len(steps)] / each for n, each in enumerate(seconds)]
    found = {"loss": first, "tokens_per_second": statistics.median(rates), "microbatches": engine.plan.microbatches}
    (task.folder / TRAINED).write_text(json.dumps(found))
    padding = 1 - np.mean(tokens) / (sizes.rows * sizes.tokens)
    yield task.row("mmjax: step, tokens/s", found["tokens_per_second"], note=f"rows {padding:.1%} padding; {how}")
    kind = engine.devices[0].device_kind
    yield mfu_row(task, "mmjax: MFU of the step", flops, seconds, kind)
    backbone = sizes.model.backbone.name
    alone = []
    for number in range(WATCHED):
        watch = _Watch(backbone)
        state, _ = _step(engine, state, placed[number % len(placed)], watch)
        alone.append(watch.seconds)
    share = [{backbone: of[backbone]} for of in flops]
    note = "its ops one by one, with its optimizer step"
    yield mfu_row(task, "mmjax: MFU of the backbone's share", share, alone, kind, MFU_GOAL, note)


def mfu_row(
    task: PartRun,
    name: str,
    flops: Sequence[dict[str, float]],
    seconds: Sequence[float],
    kind: str,
    goal: float | None = None,
    note: str = "",
) -> dict[str, Any]:
    """The median over steps; no value where the device's peak is not known.

    Args:
        task, name, goal, note: Of the row.
        flops: By module, of the batches that the steps have in turn.
        seconds: Of each step.
        kind: The device's.
    """
    peak = peak_flops(kind)
    if peak is None:
        return task.row(name, None, goal, f"the peak of {kind} is not known (configs/clusters.py)")
    rates = [sum(flops[n % len(flops)].values()) / each for n, each in enumerate(seconds)]
    return task.row(name, statistics.median(rates) / peak, goal, note or f"of {peak / 1e12:.0f} TFLOP/s")


def host_batches(steps: Sequence[gpu_batches.Step], sizes: BenchmarkSizes) -> list[GlobalBatch]:
    """The steps' arrays for mmjax, of the same shapes, by the data side's own functions."""
    rows = [row for step in steps for row in step]
    patches = (1 + gpu_batches.picture_tokens(sizes)) * max(sum(each.pictures for each in row) for row in rows)
    patches += -patches % 8  # attention's fast forms want whole multiples
    form = SampleFormat.for_model(sizes.model, patches)
    capacity = RowCapacity(sizes.tokens, patches, 0, max(map(len, rows)))
    filled = ([[_sample(each, sizes, form) for each in row] for row in step] for step in steps)
    return [build_global_batch(pack_rows(each, capacity, form), sizes.model, form) for each in filled]


def _sample(described: gpu_batches.SampleDescription, sizes: BenchmarkSizes, form: SampleFormat) -> Sample:
    shape, items = (sizes.side, sizes.side), []
    if described.pictures:
        items.append(image_item(lambda: gpu_batches.sample_picture(described, sizes), shape, form))
    return SampleMetadata("llava", gpu_batches.sample_layout(described, sizes), form, items).load(described.number)


def _started(task: PartRun, batches: Sequence[GlobalBatch]) -> tuple[Engine, TrainState, list, float, str]:
    """The engine after its first step, the batches on the device, that step's loss, and how it runs."""
    memory = (jax.devices()[0].memory_stats() or {}).get("bytes_limit", math.inf)
    refused = None
    for engine, how in fitting_engines(task.sizes, batches[0].arrays, memory):
        try:
            return engine, *_first_step(task, engine, batches), how
        except jax.errors.JaxRuntimeError as error:  # a more frugal one may fit where the estimate was too low
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            refused = str(error)
    raise UserError(f"the step does not fit {memory / 1e9:.0f} GB: {refused}")


def _first_step(task: PartRun, engine: Engine, batches: Sequence[GlobalBatch]) -> tuple[TrainState, list, float]:
    state = engine.initial_state(_DrawnAtOnce(engine))
    if not (task.folder / WEIGHTS).exists():
        _export(engine, state, task.folder / WEIGHTS)
    (task.folder / TRAINED).write_text(json.dumps({"microbatches": engine.plan.microbatches}))
    placed = [engine.place_batch(batch.arrays, 0) for batch in batches]
    state, first = _step(engine, state, placed[0])
    return state, placed, first


class _DrawnAtOnce:
    """Initial values from the seed, of all layers at once by as many threads as there are cores."""

    def __init__(self, engine: Engine) -> None:
        values, threads = SeedInitializer(0), concurrent.futures.ThreadPoolExecutor()
        self._drawn = {
            (module.name, piece.name, layer): threads.submit(values.init_layer, module, piece, layer)
            for module in engine.modules
            for piece in module.pieces
            for layer in range(piece.layers or 1)
        }

    def layer(self, module: Module, piece: Piece, layer: int, shardings: Tree | None = None) -> Tree:
        """See `InitialValues`; each can be had once."""
        drawn = self._drawn.pop((module.name, piece.name, layer)).result()
        return drawn if shardings is None else jax.tree.map(place_host_array, drawn, shardings)


def _step(engine: Engine, state: TrainState, placed: Any, watch: Any = None) -> tuple[TrainState, float]:
    """One step, waited for to its end; and its loss."""
    state, decision = engine.executor.step(state, placed, watch)
    jax.block_until_ready(vars(state))
    return state, float(np.asarray(decision.losses).sum())


class _Watch:
    """Adds up the ops of a unit."""

    def __init__(self, unit: str) -> None:
        self._unit, self._begin, self.seconds = unit, time.perf_counter(), 0.0

    def __call__(self, part: PipelineOp, in_flight: Any) -> None:
        jax.block_until_ready(in_flight)
        now = time.perf_counter()
        if part.unit == self._unit and not part.target_unit:
            self.seconds += now - self._begin
        jax.block_until_ready(in_flight)  # looking through all arrays takes time of its own, which is no work
        looked = time.perf_counter()
        if part.unit == self._unit and not part.target_unit:
            self.seconds -= looked - now
        self._begin = looked


def _export(engine: Engine, state: TrainState, folder: pathlib.Path) -> None:
    """The masters as transformers' LLaVA, in the precision of the compute."""
    layers = collections.ChainMap(*(dict(tree) for tree in state.master_weights.values()))
    target = export_target_of_type("llava", engine.config, "model", engine.config.dtype)
    export_checkpoint(
        target, lambda module, piece, layer: jax.device_get(layers[f"{module}/{piece}"][layer]), folder, 10**11
    )
