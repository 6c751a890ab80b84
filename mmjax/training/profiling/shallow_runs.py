"""Shallow copies of a model on small layouts, run by the executor itself, every op alone and waited for.

The copies take turns, step by step, so that a machine that slows down or speeds up does so for all of them.
"""

import collections
import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import TypeVar

import jax

from configs.architectures import ModelConfig
from mmjax.training.engine.engine import Engine, HostBatch
from mmjax.training.engine.settings import EngineSettings
from mmjax.training.profiling.op_times import measure_op_times
from sharding.plans.plan import Plan, UnitPlan
from sharding.schedules.ops import PipelineOp
from sharding.specs.modules import ModuleGraph

T = TypeVar("T")
PASS_KINDS = ("forward", "backward")
MICROBATCHES = 2  # the first one finds memory that others have not used yet


@dataclasses.dataclass(frozen=True)
class ShallowModel:
    """A shallow model to run.

    Attributes:
        cuts: By module, layers of each of its virtual stages.
        tps: By module, tensor ranks.
        dp: Instances.
        rows: Rows of an instance's microbatch.
        recompute: What the backward computes again.
    """

    layers_per_stage: Mapping[str, tuple[int, ...]]
    tp_by_module: Mapping[str, int]
    dp: int
    rows: int
    recompute: str


@dataclasses.dataclass(frozen=True)
class MeasuredRun:
    """One measurement.

    Attributes:
        layout: What ran.
        graph: Its modules.
        plan: Where they lay.
        devices: How many the plan had.
        bytes_between: Of a microbatch's activations, by the stages at both ends.
        seconds: Of every part.
    """

    model: ShallowModel
    graph: ModuleGraph
    plan: Plan
    devices: int
    hop_bytes: Mapping[tuple[tuple[str, int], tuple[str, int]], float]
    seconds: Mapping[PipelineOp, float]

    def stage_seconds(self, unit: str, kind: str) -> list[float]:
        """Seconds of a kind of op on every stage of a unit, of the last microbatch; 0 where it has none."""
        count = self.unit_plan(unit).stage_count
        microbatch = MICROBATCHES - 1 if kind in PASS_KINDS else -1
        return [self.seconds.get(PipelineOp(kind, unit, stage, microbatch), 0.0) for stage in range(count)]

    def unit_plan(self, unit: str) -> UnitPlan:
        """A unit of the plan, each of which holds the module of its name."""
        return next(each for each in self.plan.units if each.name == unit)


def measure_round_robin(
    config: ModelConfig, layouts: Sequence[ShallowModel], example: HostBatch, settings: EngineSettings, rounds: int
) -> list[MeasuredRun]:
    """Runs every layout in every round, and takes the median over the rounds."""
    engines = [_engine(config, layout, example, settings) for layout in layouts]  # a state lives while it runs
    samples: list[dict[PipelineOp, list[float]]] = [collections.defaultdict(list) for _ in engines]
    for _ in range(rounds):
        for (engine, batch), times in zip(engines, samples, strict=True):
            for part, seconds in measure_op_times(engine, [batch], 1).items():
                times[part].append(seconds)
    return [
        MeasuredRun(
            layout,
            engine.graph,
            engine.plan,
            len(engine.plan_devices),
            _bytes_between(engine),
            {part: statistics.median(of) for part, of in times.items()},
        )
        for layout, (engine, _), times in zip(layouts, engines, samples, strict=True)
    ]


def _engine(
    config: ModelConfig, layout: ShallowModel, example: HostBatch, settings: EngineSettings
) -> tuple[Engine, HostBatch]:
    def shallow(of: T) -> T:
        return dataclasses.replace(of, depth=sum(layout.layers_per_stage[of.name]))

    config = dataclasses.replace(
        config, encoders=tuple(map(shallow, config.encoders)), backbone=shallow(config.backbone)
    )
    batch = jax.tree.map(lambda array: array[: layout.rows * layout.dp * MICROBATCHES], example)
    return Engine(config, _plan(layout, jax.local_device_count()), batch, settings), batch


def _plan(layout: ShallowModel, devices: int) -> Plan:
    """Every module from the first device on; its stages on as many devices as there are, for the hops between them."""

    def unit(name: str) -> UnitPlan:
        cut, tp = layout.layers_per_stage[name], layout.tp_by_module[name]
        each = layout.dp * tp
        pp = max(count for count in range(1, len(cut) + 1) if len(cut) % count == 0 and count * each <= devices)
        held = tuple(range(pp * each))
        return UnitPlan(name, (name,), held, layout.dp, tp, cut, (layout.recompute,) * len(cut), len(cut) // pp)

    return Plan(tuple(map(unit, layout.layers_per_stage)), MICROBATCHES)


def _bytes_between(engine: Engine) -> dict[tuple[tuple[str, int], tuple[str, int]], float]:
    sizes: dict[tuple[tuple[str, int], tuple[str, int]], float] = collections.defaultdict(float)
    for channel in engine.executor.channels:
        shape = engine.executor.stages[channel.source].programs.output_shapes[channel.name]
        sizes[channel.source, channel.target] += float(shape.size * shape.dtype.itemsize)
    return dict(sizes)
