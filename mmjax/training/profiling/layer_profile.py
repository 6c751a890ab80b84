"""Times of layers, computed from the times of shallow models' stages (`shallow_runs.py` measures the stages).

Every stack becomes five layers on four virtual stages of 1, 1, 2 and 1 layers. The second stage is a stack of one
layer, the third has one layer more, and the first and last stages also have the layers before and after the stack. The
contention of replicas that compute at the same time is measured on stacks of two layers, which have the first and the
last of these stages.
"""

import importlib.metadata
import platform
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from configs.architectures import ModelConfig
from mmjax.training.engine.engine import HostBatch
from mmjax.training.engine.settings import EngineSettings
from mmjax.training.metrics.flops import peak_flops
from mmjax.training.profiling.divisions import RanksByModule, divide_modules, positions_of_rows
from mmjax.training.profiling.line_fits import hop_line, norm_line, once_per_step_line
from mmjax.training.profiling.shallow_runs import (
    MICROBATCHES,
    PASS_KINDS,
    MeasuredRun,
    ShallowModel,
    measure_round_robin,
)
from mmjax.training.row_loads import capacity_row_loads
from sharding.costs.profiled import LayerProfile, PassTimes, Profile, TimedRanks
from sharding.plans.resolved.trained_parts import Gradient, RequiredGradients, trained_parts
from sharding.schedules.ops import OpKind
from sharding.specs.layers.layer import LayerSpec, LoadColumn, RecomputePolicy
from sharding.specs.layers.module_spec import ModuleSpec
from sharding.specs.modules import ModuleGraph, module_graph

FOUR_STAGES, TWO_STAGES = (1, 1, 2, 1), (1, 1)
"""Layers of the virtual stages of a stack: to separate layers, and to measure contention."""

MAX_CONTENDING_REPLICAS = 8


def profile_model(
    config: ModelConfig,
    batch: HostBatch,
    settings: EngineSettings,
    ranks: Sequence[TimedRanks],
    rows: Sequence[int],
    recompute: RecomputePolicy,
    steps: int,
    callback: Callable[[int, int], None] = lambda done, total: None,
) -> Profile:
    """Measures a model's layers on the devices of this process.

    Args:
        config: The model.
        batch: A global batch's arrays, of at least `MICROBATCHES` times as many rows as the largest of `rows`.
        settings: The parts that train, and the optimizer.
        ranks: Tensor and context-parallel ranks of a replica; a module that they do not divide is measured undivided.
        rows: Rows of a replica's microbatch.
        recompute: Recomputation policy of every layer.
        steps: Number of steps that are timed for each shallow model.
        callback: As in `measure_round_robin`.

    Raises:
        UserError: No module can be divided by some of the context-parallel ranks.
    """
    graph = module_graph(config)
    batch_rows = len(next(iter(next(iter(batch.values())).values())))
    divisions = divide_modules(graph, ranks, positions_of_rows(batch))
    models = _shallow_models(graph, divisions, rows, batch_rows, recompute)
    runs = measure_round_robin(config, models, batch, settings, steps, callback)
    gradients = RequiredGradients(graph, trained_parts(graph, settings.trainable))
    device = jax.devices()[0]
    packages = {name: importlib.metadata.version(name) for name in ("jax", "jaxlib")}
    return Profile(
        device_kind=device.device_kind,
        devices_per_node=jax.local_device_count(),
        peak_flops=float(peak_flops(device.device_kind, fp8=config.uses_fp8) or 0),
        element_bytes=jnp.dtype(config.dtype).itemsize,
        versions={"python": platform.python_version()} | packages,
        layers=tuple(layer for module in graph.modules for layer in _layer_profiles(module, runs, gradients, batch)),
        gather=once_per_step_line(runs, "gather"),
        reduce=once_per_step_line(runs, "reduce"),
        update=once_per_step_line(runs, "update"),
        hop=hop_line(runs),
        norm=norm_line(runs),
    )


def _shallow_models(
    graph: ModuleGraph,
    divisions: Sequence[RanksByModule],
    rows: Sequence[int],
    batch_rows: int,
    recompute: RecomputePolicy,
) -> list[ShallowModel]:
    """Makes stacks on four stages for every division and number of rows, and on two for every number of replicas.

    The rows of a microbatch are divided among replicas, as in training: more replicas have fewer rows each.
    """
    models: list[ShallowModel] = []
    for ranks_by_module in divisions:
        measured = {name_and_ranks for model in models for name_and_ranks in model.ranks_by_module.items()}
        layers_per_stage = {
            name: _stage_layers(graph[name], (1,) if (name, ranks) in measured else FOUR_STAGES)
            for name, ranks in ranks_by_module.items()
        }
        models += [ShallowModel(layers_per_stage, ranks_by_module, 1, count, recompute) for count in sorted(rows)]
    microbatch_rows, smallest = batch_rows // MICROBATCHES, divisions[0]
    replica_devices = max(ranks.devices for ranks in smallest.values())
    most_replicas = min(jax.local_device_count() // replica_devices, microbatch_rows, MAX_CONTENDING_REPLICAS)
    two_stages = {module.name: _stage_layers(module, TWO_STAGES) for module in graph.modules}
    replicas = [2**power for power in range(1, max(most_replicas, 1).bit_length())]
    return models + [ShallowModel(two_stages, smallest, dp, microbatch_rows // dp, recompute) for dp in replicas]


def _stage_layers(module: ModuleSpec, layers: tuple[int, ...]) -> tuple[int, ...]:
    return layers if module.divisible else (module.layer_count,)


def _layer_profiles(
    module: ModuleSpec, runs: Sequence[MeasuredRun], gradients: RequiredGradients, batch: HostBatch
) -> list[LayerProfile]:
    """Profiles the layers of a module, on all ranks that it ran on: before its stack, of the stack, and after it."""
    single_runs = [run for run in runs if run.model.dp == 1]
    row_load = capacity_row_loads(batch, gradients.graph)[module.name][0]
    size_of_row = row_load[LoadColumn.TOKENS] or row_load[LoadColumn.ITEMS]
    layer_gradients = {
        layer.name: required_gradients
        for layer, _, required_gradients in gradients.of_layers(module.name, 0, module.layer_count)
    }
    profiles = []
    for ranks in sorted({run.model.ranks_by_module[module.name] for run in single_runs}):
        # Of runs of the same size, the first is taken, in which the module has all of its stages.
        run_of_rows = {
            run.model.rows: run for run in reversed(single_runs) if run.model.ranks_by_module[module.name] == ranks
        }
        row_counts = sorted(run_of_rows)
        separated = {
            kind: [separate_layer_times(run_of_rows[rows].stage_seconds(module.name, kind)) for rows in row_counts]
            for kind in PASS_KINDS
        }
        contention = {kind: _contention(module, runs, kind, ranks) for kind in PASS_KINDS}
        kinds = tuple(layer for layer, _ in module.stack)
        for position, layers in enumerate((module.leading_layers, kinds, module.trailing_layers)):
            representative = _representative(layers, layer_gradients)
            for layer in layers:
                share = float(layer is representative or layers is kinds)  # runs of a stack share its mean time
                passes = {
                    kind: PassTimes(
                        tuple(share * times[position][0] for times in separated[kind]),
                        tuple(share * times[position][1] for times in separated[kind]),
                        contention[kind],
                    )
                    for kind in PASS_KINDS
                }
                profiles.append(
                    LayerProfile(
                        layer=f"{layer.part}/{layer.name}",
                        tp=ranks.tp,
                        cp=ranks.cp,
                        context_transfer=ranks.context_transfer,
                        gradients=layer_gradients[layer.name],
                        recompute=single_runs[0].model.recompute,
                        sizes=tuple(float(size_of_row * rows) for rows in row_counts),
                        forward=passes["forward"],
                        backward=passes["backward"],
                    )
                )
    return profiles


def _representative(layers: Sequence[LayerSpec], gradients: Mapping[str, tuple[Gradient, ...]]) -> LayerSpec | None:
    """Chooses the layer that gets the time of several, of which only the sum is measured: the last with a backward."""
    with_backward = [layer for layer in layers if gradients[layer.name]]
    return (with_backward or list(layers) or [None])[-1]


def separate_layer_times(stages: Sequence[float]) -> tuple[tuple[float, float], ...]:
    """Separates the seconds of four stages into the layers before a stack, the stack, and the layers after it.

    Each is a pair: seconds of a stack of one layer, and of every further layer. Of a module that is a single stage, all
    time counts as the stack's.
    """
    if len(stages) == 1:
        return (0.0, 0.0), (stages[0], stages[0]), (0.0, 0.0)
    first, one_layer, two_layers, last = stages
    before, after = max(first - one_layer, 0.0), max(last - one_layer, 0.0)
    return (before, before), (one_layer, max(two_layers - one_layer, 0.0)), (after, after)


def _contention(module: ModuleSpec, runs: Sequence[MeasuredRun], kind: OpKind, ranks: TimedRanks) -> tuple[float, ...]:
    """Returns the factors by which passes take longer while 1, 2, 4... replicas compute; 1 on accelerators.

    They are measured on the fewest ranks; a replica of more ranks counts as several such replicas.
    """
    contending = [run for run in runs if run.model.dp > 1]
    if jax.devices()[0].platform != "cpu" or not contending:
        return (1.0,)
    fewest = contending[0].model.ranks_by_module[module.name]
    alone = {}
    for run in reversed(runs):
        if run.model.dp == 1 and run.model.ranks_by_module[module.name] == fewest:
            stages = run.stage_seconds(module.name, kind)
            alone[run.model.rows] = stages[0] + (stages[-1] if len(stages) > 1 else 0.0)
    row_counts = sorted(alone)
    factors = [1.0]
    for run in contending:
        seconds_alone = np.interp(run.model.rows, row_counts, [alone[rows] for rows in row_counts])
        seconds = sum(run.stage_seconds(module.name, kind))
        factors.append(float(seconds / seconds_alone) if seconds_alone else 1.0)
    powers = np.arange(len(factors))
    shifted = np.interp(powers + np.log2(ranks.devices / fewest.devices), powers, factors)
    return tuple((shifted / shifted[0]).tolist())
