"""GPU-days of an epoch before balancing and after each of OmniBal's steps: data, stages, memory. All are simulated."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.omnibal.sample_rows import Rows, SampleSource
from benchmarks.omnibal.settings import (
    GLOBAL_BATCH,
    LAYOUTS,
    OVERALL_GOAL,
    PADDED_SAMPLES,
    PAPER_GPU_DAYS,
    SAMPLES,
    Layout,
)
from configs.architectures import ModelConfig
from configs.clusters import ClusterConfig
from configs.workloads import SyntheticData
from sharding.costs.analytic import AnalyticCostModel
from sharding.costs.batch_costs import BatchCosts
from sharding.planners.problem import PlanningProblem
from sharding.planners.stages.anchor_search import ranked_candidates
from sharding.planners.stages.chain_costs import layer_chain
from sharding.planners.stages.chain_layout import ChainLayout
from sharding.planners.stages.chain_stages import ChainStages, balanced_stages, recomputed_stages, uniform_stages
from sharding.planners.stages.layer_chain import LayerChain, spread
from sharding.planners.stages.partition_baselines import by_parameters
from sharding.plans.plan_error import PlanError
from sharding.plans.resolved.trained_parts import trained_parts
from sharding.simulation.timeline import Timeline
from sharding.specs.layers.layer import RECOMPUTE_POLICIES
from sharding.specs.modules import module_graph
from sharding.specs.row_load_statistics import RowLoadStatistics

Row = dict[str, Any]

SECONDS_PER_DAY = 86_400
DRAWN = 60_000
RADIUS, BEST = 2, 8
"""By how many layers the boundaries of the paper's search move, and how many candidates are timed."""


class Simulated(NamedTuple):
    """An epoch.

    Attributes:
        gpu_days: Its GPU-days.
        memory: The largest share of a device's memory that a step takes; above 1 it does not fit.
        timeline: Such a step.
    """

    gpu_days: float
    memory: float
    timeline: Timeline


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Setting:
    """A chain on its devices with the microbatches of one step.

    Attributes:
        problem: The step.
        layout: Ranks, and the number of microbatches.
        chain: The layers as arrays.
        samples: Samples of the step.
    """

    problem: PlanningProblem
    layout: ChainLayout
    chain: LayerChain
    samples: float

    def simulate(self, stages: ChainStages) -> "Simulated":
        """Simulates an epoch of such steps."""
        return self.epoch(self.problem.simulate(stages.plan(self.chain, self.layout), rows=self.problem.data.loads))

    def epoch(self, timeline: Timeline) -> "Simulated":
        """An epoch of steps like a simulated one, on its devices."""
        gpu_days = timeline.step / self.samples * SAMPLES * timeline.groups.device_count / SECONDS_PER_DAY
        return Simulated(gpu_days, self.problem.memory_fraction(timeline), timeline)

    def spread(self, stages: ChainStages) -> float:
        """Seconds of the slowest stage over the mean."""
        return spread(stages.rank_seconds(self.chain, self.layout.pp))


def make_setting(
    model: ModelConfig,
    cluster: ClusterConfig,
    ranks: Layout,
    rows: Rows,
    rows_each: int,
    trainable: tuple[str, ...] = ("all",),
) -> Setting:
    """The first rows, as many as a global batch has, on a model's chain.

    Args:
        model: The model.
        cluster: The devices.
        ranks: The ranks of the chain.
        rows: The rows.
        rows_each: Rows of a microbatch on each replica of the backbone.
        trainable: The parts that train, as in `Workload`.
    """
    graph = module_graph(model)
    (encoder,) = model.encoders
    microbatch_rows = rows_each * ranks.dp
    count = max(ranks.pp, round(GLOBAL_BATCH / (rows.samples * microbatch_rows)))
    loads = rows.first(count * microbatch_rows)
    problem = PlanningProblem(
        graph=graph,
        costs=AnalyticCostModel(cluster),
        cluster=cluster,
        devices=ranks.devices,
        rows=count * microbatch_rows,
        data=RowLoadStatistics(loads),
        trained_parts=trained_parts(graph, trainable),
    )
    layout = ChainLayout(
        modules=(encoder.name, model.backbone.name),
        pp=ranks.pp,
        dp=ranks.dp,
        tp=ranks.tp,
        module_tp=(1, ranks.tp) if ranks.tp > 1 else (),
        collectives="sequence_parallel" if ranks.tp > 1 else "all_reduce",
        microbatches=count,
    )
    batch = BatchCosts(graph, problem.costs, loads)
    chain = layer_chain(batch, problem.trained_parts, layout, RECOMPUTE_POLICIES, most_in_flight=ranks.pp)
    return Setting(problem=problem, layout=layout, chain=chain, samples=count * microbatch_rows * rows.samples)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class BalancedEpochs:
    """The epochs of a model before balancing and after each step of it.

    Attributes:
        start: Samples padded at random, stages by parameters, all recomputed.
        data: Groups of ISF in the same stages.
        stages: In balanced stages.
        memory: With the recomputation of each layer chosen.
        in_static_rows: The same, in rows of static shape.
        padded: The setting of `start`.
        even: The setting of the others.
        by_parameters: Stages of `data`.
        filled: Stages of `memory`.
    """

    start: Simulated
    data: Simulated
    stages: Simulated
    memory: Simulated
    in_static_rows: Simulated
    padded: Setting
    even: Setting
    by_parameters: ChainStages
    filled: ChainStages

    @property
    def in_order(self) -> tuple[Simulated, ...]:
        """Before balancing, and after each step."""
        return self.start, self.data, self.stages, self.memory


def simulate_epochs(
    source: SampleSource, ranks: Layout, cluster: ClusterConfig, trainable: tuple[str, ...] = ("all",)
) -> BalancedEpochs:
    """Simulates a model before balancing and after each step of it.

    A padded microbatch has a sample a row, a packed one a row for each of the encoder's replicas, of which there are tp
    beside each of the backbone's.

    Args:
        source: The samples, and the model.
        ranks: The ranks of the chain.
        cluster: The devices.
        trainable: The parts that train, as in `Workload`.

    Raises:
        PlanError: No stages fit.
    """
    random, model = np.random.default_rng(0), source.model
    sizes = source.draw(DRAWN, random)
    samples = max(PADDED_SAMPLES, ranks.tp)
    padded_rows = source.padded_at_random(sizes, samples, random)
    padded = make_setting(model, cluster, ranks, padded_rows, samples, trainable)
    even, static = (
        make_setting(model, cluster, ranks, source.grouped(sizes, random, static_shapes), ranks.tp, trainable)
        for static_shapes in (False, True)
    )
    counts = by_parameters(even.chain, ranks.pp)
    assert counts is not None
    recomputed = uniform_stages(even.chain, counts, "full")
    balanced, filled, filled_static = (
        balanced_stages(chain, setting.layout, cluster.usable_memory)
        for chain, setting in ((_with_full_recomputation(even.chain), even), (even.chain, even), (static.chain, static))
    )
    if balanced is None or filled is None or filled_static is None:
        raise PlanError(f"{model.backbone.name} does not fit {ranks.devices} devices of {cluster.name}")
    return BalancedEpochs(
        start=padded.simulate(recomputed),
        data=even.simulate(recomputed),
        stages=even.simulate(uniform_stages(even.chain, balanced.counts, "full")),
        memory=even.simulate(filled),
        in_static_rows=static.simulate(filled_static),
        padded=padded,
        even=even,
        by_parameters=recomputed,
        filled=filled,
    )


def measure_model(name: str, model: ModelConfig, data: SyntheticData, cluster: ClusterConfig) -> list[Row]:
    """The rows of one model."""
    epochs = simulate_epochs(SampleSource(data.kinds[0][0], model), LAYOUTS[name], cluster)
    return [
        *_step_rows(name, epochs.in_order),
        _row(f"{name}, + memory, in rows of static shape: GPU-days", epochs.in_static_rows.gpu_days),
        *_spread_rows(name, epochs.even, epochs.by_parameters, epochs.filled),
        *_search_rows(name, epochs.even, epochs.filled),
    ]


def _with_full_recomputation(chain: LayerChain) -> LayerChain:
    """The chain whose layers all recompute everything."""
    full = [chain.policies.index("full")]
    return dataclasses.replace(
        chain,
        policies=("full",),
        forward=chain.forward[:, full],
        backward=chain.backward[:, full],
        held_bytes=chain.held_bytes[:, full],
        workspace=chain.workspace[:, full],
    )


def _step_rows(name: str, epochs: Sequence[Simulated]) -> list[Row]:
    """GPU-days and memory after each step, each step's gain over the one before, MFU after all, and the gain of all.

    The paper's MFU is that of its GPU-days with the samples at hand.
    """
    labels = ("padded at random, by parameters, full recomputation", "+ data", "+ stages", "+ memory")
    paper = PAPER_GPU_DAYS.get(name)
    papers = (paper.before, None, None, paper.after) if paper else (None,) * 4
    days = [epoch.gpu_days for epoch in epochs]
    rows = []
    for label, epoch, published in zip(labels, epochs, papers, strict=True):
        rows.append(_row(f"{name}, {label}: GPU-days", epoch.gpu_days, published))
        rows.append(_row(f"{name}, {label}: share of a device's memory", epoch.memory))
    rows += [
        _row(f"{name}, {label}: times as fast as without", earlier / later, goal=1.0)
        for label, earlier, later in zip(labels[1:], days[:-1], days[1:], strict=True)
    ]
    mfu = epochs[-1].timeline.mfu
    rows.append(_row(f"{name}, + memory: MFU", mfu, mfu * days[-1] / paper.after if paper else None))
    overall, goal = (paper.before / paper.after, OVERALL_GOAL) if paper else (None, None)
    return [*rows, _row(f"{name}: times as fast after all", days[0] / days[-1], overall, goal)]


def _spread_rows(name: str, even: Setting, recomputed: ChainStages, filled: ChainStages) -> list[Row]:
    return [
        _row(f"{name}, by parameters: slowest stage over the mean", even.spread(recomputed)),
        _row(f"{name}, balanced: slowest stage over the mean", even.spread(filled)),
    ]


def _search_rows(name: str, even: Setting, filled: ChainStages) -> list[Row]:
    """How many candidates of the paper's search fit, and the slowest stage of the best over the exact optimum's.

    Each has its best recomputation.
    """
    chain, layout, memory = even.chain, even.layout, even.problem.cluster.usable_memory
    candidates = ranked_candidates(chain, layout.pp, RADIUS, BEST)
    recomputed = [recomputed_stages(chain, layout, counts, memory) for counts in candidates]
    slowest = [float(stages.rank_seconds(chain, layout.pp).max()) for stages in recomputed if stages]
    rows = [_row(f"{name}, candidates of the paper's search that fit, of {BEST}", float(len(slowest)))]
    if slowest:
        ratio = min(slowest) / float(filled.rank_seconds(chain, layout.pp).max())
        rows.append(_row(f"{name}, slowest stage of the paper's search over the optimum", ratio))
    return rows


def _row(name: str, value: float, paper: float | None = None, goal: float | None = None) -> Row:
    return {"name": name, "value": value, "goal": goal, "met": None if goal is None else value >= goal, "paper": paper}
