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
from mmjax.training.engine import HostBatch
from mmjax.training.flops import peak_flops
from mmjax.training.profiling_lines import hop_line, norm_line, once_line
from mmjax.training.profiling_runs import KINDS, MICROBATCHES, Layout, Run, measure_in_turn
from mmjax.training.settings import Settings
from mmjax.training.workload import capacity_rows
from sharding.profiled_costs import LayerProfile, Passes, Profile
from sharding.specs import ModuleGraph, ModuleSpec, module_graph
from sharding.trainable import Turns, trained_parts

CUT, ENDS = (1, 1, 2, 1), (1, 1)
MOST_CROWDED = 8


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
    graph = module_graph(config)
    runs = measure_in_turn(config, _layouts(graph, tps, rows, _rows_of(example), recompute), example, settings, steps)
    turns = Turns(graph, trained_parts(graph, settings.trainable))
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
        **{kind: once_line(runs, kind) for kind in ("gather", "reduce", "update")},
    )


def _rows_of(example: HostBatch) -> int:
    return len(next(iter(next(iter(example.values())).values())))


def _layouts(
    graph: ModuleGraph, tps: Sequence[int], rows: Sequence[int], most_rows: int, recompute: str
) -> list[Layout]:
    """Stacks in stages of one and of two layers for every tensor size, and in their ends for every number of instances.

    The rows of a microbatch are dealt out, as in training: more instances have fewer each.
    """
    layouts: list[Layout] = []
    for tp in sorted(tps):
        ranks = _ranks(graph, tp)
        known = {(name, of) for layout in layouts for name, of in layout.tps.items()}
        cuts = {m.name: _cut(m, (1,) if (m.name, ranks[m.name]) in known else CUT) for m in graph.modules}
        layouts += [Layout(cuts, ranks, 1, each, recompute) for each in sorted(rows)]
    whole, fewest = most_rows // MICROBATCHES, min(tps)
    most = min(jax.local_device_count() // fewest, whole, MOST_CROWDED)
    ends = {module.name: _cut(module, ENDS) for module in graph.modules}
    powers = [2**power for power in range(1, max(most, 1).bit_length())]
    return layouts + [Layout(ends, _ranks(graph, fewest), dp, whole // dp, recompute) for dp in powers]


def _ranks(graph: ModuleGraph, tp: int) -> dict[str, int]:
    return {module.name: tp if module.splits_over(tp) else 1 for module in graph.modules}


def _cut(module: ModuleSpec, cut: tuple[int, ...]) -> tuple[int, ...]:
    return cut if module.divisible else (module.layers,)


def _layers(module: ModuleSpec, runs: Sequence[Run], turns: Turns, example: HostBatch) -> list[LayerProfile]:
    """A module's layers at every number of tensor ranks: what stands before its stack, its own, what stands after."""
    alone = [run for run in runs if run.layout.dp == 1]
    loads = capacity_rows(example, turns.graph)[module.name][0]
    whole = {layer.name: of for layer, _, of in turns.of(module.name, 0, module.layers)}
    profiles = []
    for tp in sorted({run.layout.tps[module.name] for run in alone}):
        of_rows = {run.layout.rows: run for run in reversed(alone) if run.layout.tps[module.name] == tp}
        sizes = tuple(float((loads[0] or loads[2]) * rows) for rows in sorted(of_rows))
        crowding = {kind: _crowding(module, runs, kind, tp) for kind in KINDS}
        times = {
            kind: [taken_apart(of_rows[rows].stages(module.name, kind)) for rows in sorted(of_rows)] for kind in KINDS
        }
        for place, group in enumerate((module.before, (module.layer,), module.after)):
            # Of several before or after the stack only the sum is known; it stands for the last that has a backward.
            counts = [layer for layer in group if whole[layer.name]] or list(group)
            for layer in group:
                share = float(layer is counts[-1])
                passes = {
                    kind: Passes(
                        tuple(share * of[place][0] for of in times[kind]),
                        tuple(share * of[place][1] for of in times[kind]),
                        crowding[kind],
                    )
                    for kind in KINDS
                }
                name = f"{layer.part}/{layer.name}"
                recompute = alone[0].layout.recompute
                profiles.append(LayerProfile(name, tp, whole[layer.name], recompute, sizes, **passes))
    return profiles


def taken_apart(stages: Sequence[float]) -> tuple[tuple[float, float], ...]:
    """Seconds of what stands before a stack, of the stack, and of what stands after: of one, and of each more."""
    if len(stages) == 1:
        return (0.0, 0.0), (stages[0], stages[0]), (0.0, 0.0)
    first, one, two, last = stages
    before, after = max(first - one, 0.0), max(last - one, 0.0)
    return (before, before), (one, max(two - one, 0.0)), (after, after)


def _crowding(module: ModuleSpec, runs: Sequence[Run], kind: str, tp: int) -> tuple[float, ...]:
    """How many times as long passes take on 1, 2, 4... instances of `tp` ranks; accelerators share nothing.

    It is measured at the fewest tensor ranks; more ranks are counted as instances of those.
    """
    crowded = [run for run in runs if run.layout.dp > 1]
    if jax.devices()[0].platform != "cpu" or not crowded:
        return (1.0,)
    fewest = crowded[0].layout.tps[module.name]
    alone = {}
    for run in reversed(runs):
        if run.layout.dp == 1 and run.layout.tps[module.name] == fewest:
            stages = run.stages(module.name, kind)
            alone[run.layout.rows] = stages[0] + (stages[-1] if len(stages) > 1 else 0.0)
    rows = sorted(alone)
    factors = [1.0]
    for run in crowded:
        base = np.interp(run.layout.rows, rows, [alone[each] for each in rows])
        factors.append(float(sum(run.stages(module.name, kind)) / base) if base else 1.0)
    first = tp // fewest  # of as many ranks they are one instance
    powers = np.arange(len(factors))
    known = np.interp(powers + np.log2(first), powers, factors)
    return tuple((known / known[0]).tolist())
