"""Takes the times of shallow models' stages apart into those of layers (`profiling_runs.py` measures them).

Every stack becomes five layers on four virtual stages of one, one, two and one layer: the second is a stack of one, the
third has one more, and the first and last have what stands before and after. What instances that compute at once cost
each other is measured on stacks of two layers, which have the first and the last of these stages.
"""

import importlib.metadata
import platform
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from configs.architectures import ModelConfig
from mmjax.training.engine.engine import HostBatch
from mmjax.training.engine.settings import EngineSettings
from mmjax.training.metrics.flops import peak_flops
from mmjax.training.profiling.line_fits import hop_line, norm_line, once_per_step_line
from mmjax.training.profiling.shallow_runs import (
    MICROBATCHES,
    PASS_KINDS,
    MeasuredRun,
    ShallowModel,
    measure_round_robin,
)
from mmjax.training.row_loads import capacity_row_loads
from sharding.costs.profiled import LayerProfile, PassTimes, Profile
from sharding.plans.trained_parts import RequiredGradients, trained_parts
from sharding.specs.modules import ModuleGraph, ModuleSpec, module_graph

CUT, ENDS = (1, 1, 2, 1), (1, 1)
MOST_CROWDED = 8


def profile_model(
    config: ModelConfig,
    example: HostBatch,
    settings: EngineSettings,
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
    graph = module_graph(config)
    runs = measure_round_robin(
        config, _layouts(graph, tps, rows, _rows_of(example), recompute), example, settings, steps
    )
    turns = RequiredGradients(graph, trained_parts(graph, settings.trainable))
    device = jax.devices()[0]
    return Profile(
        device_kind=device.device_kind,
        devices_per_node=jax.local_device_count(),
        peak_flops=float(peak_flops(device.device_kind) or 0),
        element_bytes=jnp.dtype(config.dtype).itemsize,
        versions={"python": platform.python_version()} | {n: importlib.metadata.version(n) for n in ("jax", "jaxlib")},
        layers=tuple(each for module in graph.modules for each in _layers(module, runs, turns, example)),
        hop=hop_line(runs),
        norm=norm_line(runs),
        **{kind: once_per_step_line(runs, kind) for kind in ("gather", "reduce", "update")},
    )


def _rows_of(example: HostBatch) -> int:
    return len(next(iter(next(iter(example.values())).values())))


def _layouts(
    graph: ModuleGraph, tps: Sequence[int], rows: Sequence[int], most_rows: int, recompute: str
) -> list[ShallowModel]:
    """Stacks in stages of one and of two layers for every tensor size, and in their ends for every number of instances.

    The rows of a microbatch are dealt out, as in training: more instances have fewer each.
    """
    layouts: list[ShallowModel] = []
    for tp in sorted(tps):
        ranks = _ranks(graph, tp)
        known = {(name, of) for layout in layouts for name, of in layout.tp_by_module.items()}
        cuts = {m.name: _cut(m, (1,) if (m.name, ranks[m.name]) in known else CUT) for m in graph.modules}
        layouts += [ShallowModel(cuts, ranks, 1, each, recompute) for each in sorted(rows)]
    whole, fewest = most_rows // MICROBATCHES, min(tps)
    most = min(jax.local_device_count() // fewest, whole, MOST_CROWDED)
    ends = {module.name: _cut(module, ENDS) for module in graph.modules}
    powers = [2**power for power in range(1, max(most, 1).bit_length())]
    return layouts + [ShallowModel(ends, _ranks(graph, fewest), dp, whole // dp, recompute) for dp in powers]


def _ranks(graph: ModuleGraph, tp: int) -> dict[str, int]:
    return {module.name: tp if module.supports_tp(tp) else 1 for module in graph.modules}


def _cut(module: ModuleSpec, cut: tuple[int, ...]) -> tuple[int, ...]:
    return cut if module.divisible else (module.layer_count,)


def _layers(
    module: ModuleSpec, runs: Sequence[MeasuredRun], turns: RequiredGradients, example: HostBatch
) -> list[LayerProfile]:
    """A module's layers at every number of tensor ranks: what stands before its stack, its own, what stands after."""
    alone = [run for run in runs if run.model.dp == 1]
    loads = capacity_row_loads(example, turns.graph)[module.name][0]
    whole = {layer.name: of for layer, _, of in turns.of_layers(module.name, 0, module.layer_count)}
    profiles = []
    for tp in sorted({run.model.tp_by_module[module.name] for run in alone}):
        of_rows = {run.model.rows: run for run in reversed(alone) if run.model.tp_by_module[module.name] == tp}
        sizes = tuple(float((loads[0] or loads[2]) * rows) for rows in sorted(of_rows))
        crowding = {kind: _crowding(module, runs, kind, tp) for kind in PASS_KINDS}
        times = {
            kind: [separate_layer_times(of_rows[rows].stage_seconds(module.name, kind)) for rows in sorted(of_rows)]
            for kind in PASS_KINDS
        }
        for place, group in enumerate((module.leading_layers, (module.layer,), module.trailing_layers)):
            # Of several before or after the stack only the sum is known; it stands for the last that has a backward.
            counts = [layer for layer in group if whole[layer.name]] or list(group)
            for layer in group:
                share = float(layer is counts[-1])
                passes = {
                    kind: PassTimes(
                        tuple(share * of[place][0] for of in times[kind]),
                        tuple(share * of[place][1] for of in times[kind]),
                        crowding[kind],
                    )
                    for kind in PASS_KINDS
                }
                name = f"{layer.part}/{layer.name}"
                recompute = alone[0].model.recompute
                profiles.append(LayerProfile(name, tp, whole[layer.name], recompute, sizes, **passes))
    return profiles


def separate_layer_times(stages: Sequence[float]) -> tuple[tuple[float, float], ...]:
    """Seconds of what stands before a stack, of the stack, and of what stands after: of one, and of each more."""
    if len(stages) == 1:
        return (0.0, 0.0), (stages[0], stages[0]), (0.0, 0.0)
    first, one, two, last = stages
    before, after = max(first - one, 0.0), max(last - one, 0.0)
    return (before, before), (one, max(two - one, 0.0)), (after, after)


def _crowding(module: ModuleSpec, runs: Sequence[MeasuredRun], kind: str, tp: int) -> tuple[float, ...]:
    """How many times as long passes take on 1, 2, 4... instances of `tp` ranks; accelerators share nothing.

    It is measured at the fewest tensor ranks; more ranks are counted as instances of those.
    """
    crowded = [run for run in runs if run.model.dp > 1]
    if jax.devices()[0].platform != "cpu" or not crowded:
        return (1.0,)
    fewest = crowded[0].model.tp_by_module[module.name]
    alone = {}
    for run in reversed(runs):
        if run.model.dp == 1 and run.model.tp_by_module[module.name] == fewest:
            stages = run.stage_seconds(module.name, kind)
            alone[run.model.rows] = stages[0] + (stages[-1] if len(stages) > 1 else 0.0)
    rows = sorted(alone)
    factors = [1.0]
    for run in crowded:
        base = np.interp(run.model.rows, rows, [alone[each] for each in rows])
        factors.append(float(sum(run.stage_seconds(module.name, kind)) / base) if base else 1.0)
    first = tp // fewest  # of as many ranks they are one instance
    powers = np.arange(len(factors))
    known = np.interp(powers + np.log2(first), powers, factors)
    return tuple((known / known[0]).tolist())
