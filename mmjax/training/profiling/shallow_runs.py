"""Shallow copies of a model on small plans, run by the executor itself, every op alone and waited for.

The copies take turns, step by step, so that a machine that slows down or speeds up does so for all of them.
"""

import collections
import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence

import jax

from configs.architectures import ModelConfig
from mmjax.training.engine.engine import Engine, HostBatch
from mmjax.training.engine.settings import EngineSettings
from mmjax.training.profiling.op_times import measure_op_times
from sharding.costs.profiled import TimedRanks
from sharding.plans.parallelism import Parallelism
from sharding.plans.plan import Plan
from sharding.plans.resolved.stage_graph import StageEdge
from sharding.plans.unit_plan import UnitPlan
from sharding.schedules.ops import OpKind, PipelineOp
from sharding.specs.layers.layer import RecomputePolicy
from sharding.specs.modules import ModuleGraph

PASS_KINDS: tuple[OpKind, ...] = ("forward", "backward")

MICROBATCHES = 2
"""Number of microbatches of a run. The last is timed, because the first gets memory that was not used before."""


@dataclasses.dataclass(frozen=True)
class ShallowModel:
    """A shallow copy of a model, and how it is divided.

    Attributes:
        layers_per_stage: Number of layers of each virtual stage, by module.
        ranks_by_module: Tensor and context-parallel ranks, by module.
        dp: Data-parallel replicas.
        rows: Rows of a replica's microbatch.
        recompute: Recomputation policy of every stage.
    """

    layers_per_stage: Mapping[str, tuple[int, ...]]
    ranks_by_module: Mapping[str, TimedRanks]
    dp: int
    rows: int
    recompute: RecomputePolicy


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeasuredRun:
    """Measured times of a shallow model.

    Attributes:
        model: The shallow model that ran.
        graph: The specs of its modules.
        plan: The placement of the modules; every unit holds the module of its name.
        hop_bytes: Bytes of a microbatch's activations, by the stages at both ends.
        seconds: Seconds of every op.
    """

    model: ShallowModel
    graph: ModuleGraph
    plan: Plan
    hop_bytes: Mapping[StageEdge, float]
    seconds: Mapping[PipelineOp, float]

    def stage_seconds(self, unit: str, kind: OpKind) -> list[float]:
        """Seconds of a kind of op on each stage of a unit, for the last microbatch; 0 for stages without such an op."""
        microbatch = MICROBATCHES - 1 if kind in PASS_KINDS else -1
        stages = range(self.plan.unit_of(unit).stage_count)
        return [self.seconds.get(PipelineOp(kind, unit, stage, microbatch), 0.0) for stage in stages]


def measure_round_robin(
    config: ModelConfig,
    models: Sequence[ShallowModel],
    batch: HostBatch,
    settings: EngineSettings,
    rounds: int,
    callback: Callable[[int, int], None] = lambda done, total: None,
) -> list[MeasuredRun]:
    """Runs every shallow model once in every round, and takes the median over the rounds.

    Args:
        config: The model that the shallow ones are copies of.
        models: The shallow models.
        batch: Arrays of a global batch, of which each model takes the first rows.
        settings: The optimizer, and the parts that train.
        rounds: Number of rounds.
        callback: Called with the number of models that have run for the first time, when their programs compile, and
            the number of all models.
    """
    callback(0, len(models))
    # An engine holds no state, so all of them fit; a state exists only while its model runs.
    engines = [_build_engine(config, model, batch, settings) for model in models]
    samples: list[dict[PipelineOp, list[float]]] = [collections.defaultdict(list) for _ in engines]
    for round_index in range(rounds):
        for number, ((engine, model_batch), times) in enumerate(zip(engines, samples, strict=True), start=1):
            for op, seconds in measure_op_times(engine, [model_batch], 1).items():
                times[op].append(seconds)
            if round_index == 0:
                callback(number, len(models))
    return [
        MeasuredRun(
            model=model,
            graph=engine.graph,
            plan=engine.plan,
            hop_bytes=_hop_bytes(engine),
            seconds={op: statistics.median(op_seconds) for op, op_seconds in times.items()},
        )
        for model, (engine, _), times in zip(models, engines, samples, strict=True)
    ]


def _build_engine(
    config: ModelConfig, model: ShallowModel, batch: HostBatch, settings: EngineSettings
) -> tuple[Engine, HostBatch]:
    depths = {name: sum(layers) for name, layers in model.layers_per_stage.items()}
    config = dataclasses.replace(
        config,
        encoders=tuple(encoder.with_depth(depths[encoder.name]) for encoder in config.encoders),
        backbone=config.backbone.with_depth(depths[config.backbone.name] + config.early_blocks),
        generators=tuple(generator.with_layers(depths[generator.name]) for generator in config.generators),
    )
    model_batch = jax.tree.map(lambda array: array[: model.rows * model.dp * MICROBATCHES], batch)
    return Engine(config, _plan(model, jax.local_device_count()), model_batch, settings), model_batch


def _plan(model: ShallowModel, devices: int) -> Plan:
    """Places every module from device 0 on, its stages on all devices if possible, so that hops can be measured."""

    def unit(name: str) -> UnitPlan:
        layers, ranks = model.layers_per_stage[name], model.ranks_by_module[name]
        stage_devices = model.dp * ranks.devices
        pp = max(
            count
            for count in range(1, len(layers) + 1)
            if len(layers) % count == 0 and count * stage_devices <= devices
        )
        return UnitPlan(
            name=name,
            modules=(name,),
            devices=tuple(range(pp * stage_devices)),
            layers=layers,
            recompute=(model.recompute,) * len(layers),
            parallelism=Parallelism(
                dp=model.dp, tp=ranks.tp, cp=ranks.cp, context_transfer=ranks.context_transfer, chunks=len(layers) // pp
            ),
        )

    return Plan(tuple(map(unit, model.layers_per_stage)), MICROBATCHES)


def _hop_bytes(engine: Engine) -> dict[StageEdge, float]:
    sizes: dict[StageEdge, float] = collections.defaultdict(float)
    for channel in engine.executor.channels:
        shape = engine.executor.stages[channel.source].programs.output_shapes[channel.name]
        sizes[channel.source, channel.target] += float(shape.size * shape.dtype.itemsize)
    return dict(sizes)
