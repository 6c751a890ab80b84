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
from mmjax.training.engine import Engine, HostBatch
from mmjax.training.measured import measure_ops
from mmjax.training.settings import Settings
from sharding.ops import Part
from sharding.plan import Plan, UnitPlan
from sharding.specs import ModuleGraph

T = TypeVar("T")
KINDS = ("forward", "backward")
MICROBATCHES = 2  # the first one finds memory that others have not used yet


@dataclasses.dataclass(frozen=True)
class Layout:
    """A shallow model to run.

    Attributes:
        cuts: By module, layers of each of its virtual stages.
        tps: By module, tensor ranks.
        dp: Instances.
        rows: Rows of an instance's microbatch.
        recompute: What the backward computes again.
    """

    cuts: Mapping[str, tuple[int, ...]]
    tps: Mapping[str, int]
    dp: int
    rows: int
    recompute: str


@dataclasses.dataclass(frozen=True)
class Run:
    """One measurement.

    Attributes:
        layout: What ran.
        graph: Its modules.
        plan: Where they lay.
        devices: How many the plan had.
        bytes_between: Of a microbatch's activations, by the stages at both ends.
        seconds: Of every part.
    """

    layout: Layout
    graph: ModuleGraph
    plan: Plan
    devices: int
    bytes_between: Mapping[tuple[tuple[str, int], tuple[str, int]], float]
    seconds: Mapping[Part, float]

    def stages(self, unit: str, kind: str) -> list[float]:
        """Seconds of a kind of op on every stage of a unit, of the last microbatch; 0 where it has none."""
        count = self.plan_of(unit).stages
        microbatch = MICROBATCHES - 1 if kind in KINDS else -1
        return [self.seconds.get(Part(kind, unit, stage, microbatch), 0.0) for stage in range(count)]

    def plan_of(self, unit: str) -> UnitPlan:
        """A unit of the plan, each of which holds the module of its name."""
        return next(each for each in self.plan.units if each.name == unit)


def measure_in_turn(
    config: ModelConfig, layouts: Sequence[Layout], example: HostBatch, settings: Settings, rounds: int
) -> list[Run]:
    """Runs every layout in every round, and takes the median over the rounds."""
    engines = [_engine(config, layout, example, settings) for layout in layouts]  # a state lives while it runs
    samples: list[dict[Part, list[float]]] = [collections.defaultdict(list) for _ in engines]
    for _ in range(rounds):
        for (engine, batch), times in zip(engines, samples, strict=True):
            for part, seconds in measure_ops(engine, [batch], 1).items():
                times[part].append(seconds)
    return [
        Run(
            layout,
            engine.graph,
            engine.plan,
            len(engine.allocated),
            _bytes_between(engine),
            {part: statistics.median(of) for part, of in times.items()},
        )
        for layout, (engine, _), times in zip(layouts, engines, samples, strict=True)
    ]


def _engine(config: ModelConfig, layout: Layout, example: HostBatch, settings: Settings) -> tuple[Engine, HostBatch]:
    def shallow(of: T) -> T:
        return dataclasses.replace(of, depth=sum(layout.cuts[of.name]))

    config = dataclasses.replace(
        config, encoders=tuple(map(shallow, config.encoders)), backbone=shallow(config.backbone)
    )
    batch = jax.tree.map(lambda array: array[: layout.rows * layout.dp * MICROBATCHES], example)
    return Engine(config, _plan(layout, jax.local_device_count()), batch, settings), batch


def _plan(layout: Layout, devices: int) -> Plan:
    """Every module from the first device on; its stages on as many devices as there are, for the hops between them."""

    def unit(name: str) -> UnitPlan:
        cut, tp = layout.cuts[name], layout.tps[name]
        each = layout.dp * tp
        pp = max(count for count in range(1, len(cut) + 1) if len(cut) % count == 0 and count * each <= devices)
        held = tuple(range(pp * each))
        return UnitPlan(name, (name,), held, layout.dp, tp, cut, (layout.recompute,) * len(cut), len(cut) // pp)

    return Plan(tuple(map(unit, layout.cuts)), MICROBATCHES)


def _bytes_between(engine: Engine) -> dict[tuple[tuple[str, int], tuple[str, int]], float]:
    sizes: dict[tuple[tuple[str, int], tuple[str, int]], float] = collections.defaultdict(float)
    for channel in engine.executor.channels:
        shape = engine.channel_shapes[channel.name]
        sizes[channel.source, channel.target] += float(shape.size * shape.dtype.itemsize)
    return dict(sizes)
