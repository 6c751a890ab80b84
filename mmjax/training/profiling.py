"""Times the layers of a model by running the executor itself on a shallow copy, all of whose stages share devices.

Every stack becomes five layers on four virtual stages of one, one, two and one layer: the second is a layer and what a
program costs beside its layers, the third two layers, and the first and last have what stands before and after.
"""

import dataclasses
import importlib.metadata
import math
import platform
import statistics
import time
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from configs.architectures import ModelConfig
from mmjax.training.engine import Engine, HostBatch
from mmjax.training.flops import peak_flops
from mmjax.training.measured import measure_ops
from mmjax.training.settings import Settings
from mmjax.training.workload import capacity_rows
from sharding.ops import Part
from sharding.plan import Plan, UnitPlan, stage_layers
from sharding.profiled_costs import LayerProfile, Line, Profile
from sharding.runtime.broker import Hop, make_hop
from sharding.runtime.meshes import AXES, submesh
from sharding.specs import ModuleGraph, ModuleSpec, module_graph
from sharding.trainable import Turns, trained_parts

CUT = (1, 1, 2, 1)
KINDS = ("forward", "backward")
MICROBATCHES = 2  # the first one finds memory that others have not used yet
HOP_SIZES = (2.0**16, 2.0**22)
MOST_CROWDED = 8


@dataclasses.dataclass(frozen=True)
class Run:
    """One measurement: a layout of the shallow model, and seconds of its parts."""

    plan: Plan
    rows: int
    seconds: Mapping[Part, float]

    def stages(self, unit: str, kind: str) -> list[float]:
        """Seconds of a kind of op on every stage of a unit, of the last microbatch; 0 where it has none."""
        count = next(each.stages for each in self.plan.units if each.name == unit)
        microbatch = MICROBATCHES - 1 if kind in KINDS else -1
        return [self.seconds.get(Part(kind, unit, stage, microbatch), 0.0) for stage in range(count)]


def profile(
    config: ModelConfig,
    example: HostBatch,
    settings: Settings,
    tps: Sequence[int],
    rows: Sequence[int],
    recompute: str,
    steps: int,
) -> Profile:
    """Measures a model's layers on the devices of this process.

    Args:
        config: The model.
        example: A global batch's arrays, of at least twice as many rows as are asked for.
        settings: What trains, and by which optimizer.
        tps: Numbers of tensor ranks; a module that one does not divide is measured without.
        rows: Rows of an instance's microbatch.
        recompute: What the backward computes again: `none`, `selective` or `full`.
        steps: Steps to time for each.
    """
    shallow = _of_depth(config, sum(CUT))
    graph = module_graph(shallow)
    turns = Turns(graph, trained_parts(graph, settings.trainable))
    plans = [_plan(graph, tp, 1, recompute) for tp in tps]
    runs = [_measure(shallow, plan, example, each, settings, steps) for plan in plans for each in rows]
    launch = _launch(runs)
    layers = [
        _layer_profiles(
            spec, [run for run in runs if run.plan.unit_of(spec.name).tp == tp], turns, example, recompute, launch
        )
        for spec in graph.modules
        for tp in sorted({run.plan.unit_of(spec.name).tp for run in runs})
    ]
    device = jax.devices()[0]
    once = {kind: _line(_once(shallow, runs, kind)) for kind in ("gather", "reduce", "update")}
    return Profile(
        device_kind=device.device_kind,
        devices_per_node=jax.local_device_count(),
        peak_flops=float(peak_flops(device.device_kind) or 0),
        element_bytes=jnp.dtype(config.dtype).itemsize,
        versions={"python": platform.python_version()} | {n: importlib.metadata.version(n) for n in ("jax", "jaxlib")},
        layers=tuple(each for group in layers for each in group),
        hop=_hop_line(),
        launch=launch,
        crowding=_crowding(config, example, settings, steps),
        **once,
    )


def _of_depth(config: ModelConfig, depth: int) -> ModelConfig:
    encoders = tuple(dataclasses.replace(encoder, depth=depth) for encoder in config.encoders)
    return dataclasses.replace(config, encoders=encoders, backbone=dataclasses.replace(config.backbone, depth=depth))


def _plan(graph: ModuleGraph, tp: int, dp: int, recompute: str) -> Plan:
    """Every module on the first devices, its stack cut into virtual stages of one."""

    def unit(module: ModuleSpec) -> UnitPlan:
        ranks = tp if module.splits_over(tp) else 1
        cut = CUT if module.layers == sum(CUT) else (module.layers,)
        devices = tuple(range(dp * ranks))
        return UnitPlan(module.name, (module.name,), devices, dp, ranks, cut, (recompute,) * len(cut), len(cut))

    return Plan(tuple(map(unit, graph.modules)), MICROBATCHES)


def _measure(config: ModelConfig, plan: Plan, example: HostBatch, rows: int, settings: Settings, steps: int) -> Run:
    batch = jax.tree.map(lambda array: array[: rows * plan.units[0].dp * MICROBATCHES], example)
    engine = Engine(config, plan, batch, settings)
    return Run(plan, rows, measure_ops(engine, [batch], steps))


def _layer_profiles(
    spec: ModuleSpec, runs: Sequence[Run], turns: Turns, example: HostBatch, recompute: str, launch: float
) -> list[LayerProfile]:
    """A module's layers at one number of tensor ranks: what stands before its stack, one of it, what stands after."""
    runs = sorted({run.rows: run for run in runs}.values(), key=lambda run: run.rows)
    loads = capacity_rows(example, turns.graph)[spec.name][0]
    sizes = tuple(float((loads[0] or loads[2]) * run.rows) for run in runs)
    times = {kind: [_taken_apart(run.stages(spec.name, kind), launch) for run in runs] for kind in KINDS}
    whole = {layer.name: of for layer, _, of in turns.of(spec.name, 0, spec.layers)}
    profiles = []
    for place, group in enumerate((spec.before, (spec.layer,), spec.after)):
        # Of several before or after the stack only the sum is known; it stands for the last that has a backward.
        counts = [layer for layer in group if whole[layer.name]] or list(group)
        for layer in group:
            share = float(layer is counts[-1])
            profiles.append(
                LayerProfile(
                    f"{layer.part}/{layer.name}",
                    runs[0].plan.unit_of(spec.name).tp,
                    whole[layer.name],
                    recompute,
                    sizes,
                    tuple(share * of[place] for of in times["forward"]),
                    tuple(share * of[place] for of in times["backward"]),
                )
            )
    return profiles


def _taken_apart(stages: Sequence[float], launch: float) -> tuple[float, float, float]:
    """Seconds of what stands before a stack, of one layer, and of what stands after, without the programs' own."""
    if len(stages) == 1:
        return 0.0, max(stages[0] - launch, 0.0), 0.0
    first, one, two, last = (max(stage - launch, 0.0) for stage in stages)
    layer = (one + two) / 3
    return max(first - layer, 0.0), layer, max(last - layer, 0.0)


def _launch(runs: Sequence[Run]) -> float:
    """Seconds of a program beside its layers, the median: what one layer and again one take longer than two.

    At most half of the shortest program: noise must not leave a layer that ran without a time.
    """
    own, shortest = [], math.inf
    for run in runs:
        for unit in run.plan.units:
            for kind in KINDS:
                stages = run.stages(unit.name, kind)
                shortest = min([shortest, *filter(None, stages)])
                if unit.stages == len(CUT) and stages[1]:
                    own.append(max(2 * stages[1] - stages[2], 0.0))
    return min(statistics.median(own), shortest / 2) if own else 0.0


def _once(config: ModelConfig, runs: Sequence[Run], kind: str) -> list[tuple[float, float]]:
    """(parameters of a device, seconds) of an op of a kind on every stage."""
    graph = module_graph(config)
    found = []
    for run in runs:
        for unit in run.plan.units:
            for stage, spans in enumerate(stage_layers(unit, graph)):
                layers = [each for module, first, last in spans for each in graph[module].run(first, last)]
                size = sum(count * layer.on_rank(unit.tp) for layer, count in layers)
                seconds = run.stages(unit.name, kind)[stage]
                found += [(size, seconds)] if seconds else []
    return found


def _line(points: Sequence[tuple[float, float]]) -> Line:
    """The line through points with the least squares; it neither falls nor starts below zero."""
    if not points:
        return Line(0.0, 0.0)
    sizes, seconds = np.array(points).T
    rate = float(np.polyfit(sizes, seconds, 1)[0]) if len(set(sizes)) > 1 else 0.0
    rate = max(rate, 0.0)
    return Line(max(float(np.mean(seconds - rate * sizes)), 0.0), rate)


def _hop_line() -> Line:
    """A hop of a small and of a large array, from two instances to two tensor ranks where there are the devices."""
    devices = jax.local_devices()
    if len(devices) == 1:
        return Line(0.0, 0.0)
    each = 2 if len(devices) >= 4 else 1
    ends = (submesh(devices[:each], each, 1), submesh(devices[each : 2 * each], 1, each))
    source, target = (NamedSharding(mesh, P(AXES.data)) for mesh in ends)
    points = []
    for size in HOP_SIZES:
        shape = (each, int(size) // 4 // each)
        hop = make_hop(source, target, shape, jnp.float32)
        array = jax.device_put(np.zeros(shape, np.float32), source)
        points += [(size, _seconds(hop, array)) for _ in range(5)][1:]
    return _line(points)


def _seconds(hop: Hop, array: jax.Array) -> float:
    jax.block_until_ready(array)
    begin = time.perf_counter()
    jax.block_until_ready(hop(array))
    return time.perf_counter() - begin


def _crowding(config: ModelConfig, example: HostBatch, settings: Settings, steps: int) -> tuple[float, ...]:
    """How much longer passes take on each of 1, 2, 4... devices that compute at once; accelerators share nothing.

    The rows of a microbatch are dealt out, as in training: more instances have fewer each.
    """
    if jax.devices()[0].platform != "cpu":
        return (1.0,)
    shallow = _of_depth(config, 1)
    graph = module_graph(shallow)
    whole = len(next(iter(next(iter(example.values())).values()))) // MICROBATCHES

    def passes(instances: int, rows: int) -> float:
        run = _measure(shallow, _plan(graph, 1, instances, "none"), example, rows, settings, steps)
        return sum(seconds for part, seconds in run.seconds.items() if part.kind in KINDS)

    factors, instances = [1.0], 2
    while instances <= min(jax.local_device_count(), whole, MOST_CROWDED):
        rows = whole // instances
        factors.append(passes(instances, rows) / passes(1, rows))
        instances *= 2
    return tuple(factors)
