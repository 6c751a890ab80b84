"""OmniBal's tables (arXiv 2407.20761, section 5): GPU-days of an epoch, data, partitions, memory.

GPU-days are simulated, for 1.2 million samples as `configs/data/internvl_1_2_like.gin` describes them; how alike groups
are is computed.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np

from benchmarks.omnibal.sample_rows import MARGIN, ROUNDS, TOKENS, SampleSizes, SampleSource
from benchmarks.omnibal.settings import LAYOUTS, PADDED_SAMPLES, PAPER_GPU_DAYS, Layout
from benchmarks.omnibal.steps import (
    BEST,
    DRAWN,
    RADIUS,
    BalancedEpochs,
    Setting,
    Simulated,
    make_setting,
    simulate_epochs,
)
from benchmarks.papers.best_plans import BestPlans
from benchmarks.papers.paper_rows import Band, Figure, PaperName, PaperRow, Unit, exactly
from benchmarks.papers.ranges import ratio_figure, step_figure
from configs.architectures import ModelConfig
from configs.clusters import CLUSTERS
from configs.workloads import SyntheticData
from data.packing.grouping.algorithms import IterativeSamplingAndFiltering
from data.packing.grouping.comparison import PADDED_BASELINES, dist_ratio, pad_ratio
from data.packing.grouping.groups import Groups
from data.packing.grouping.steps import balanced_steps, consecutive_steps
from mmjax import cli
from sharding.costs.cost_model import LayerParallelism
from sharding.costs.published_errors import step_range
from sharding.planners.policies.auto import run_policy
from sharding.planners.stages.anchor_search import ranked_candidates
from sharding.planners.stages.chain_stages import ChainStages, uniform_stages
from sharding.planners.stages.partition_baselines import PARTITION_METHODS
from sharding.specs.layers.layer import make_loads

PAPER: PaperName = "omnibal"
CLUSTER = CLUSTERS["a100"]
START, OMNIBAL, ZERO_3 = "InternVL's (random, padded)", "OmniBal", "ZeRO-3"
MODEL_NAMES = {
    "internvit_6b_llama3_8b": "6B + Llama3-8B",
    "internvit_6b_internlm2_20b": "6B + InternLM2-20B",
    "internvit_6b_yi_34b": "6B + Yi-34B",
    "internvit_6b_llama3_70b": "6B + Llama3-70B",
    "internvit_6b_qwen1_5_110b": "6B + Qwen1.5-110B",
}
SHOWN = "internvit_6b_internlm2_20b"
"""The model of the tables on data, partitions and memory."""

MAIN, ZERO, STEPS = "section 5, GPU-days", "section 5, GPU-days with ZeRO-3", "section 5, each step of balance"
DATA, PARTITIONS, MEMORY = "table 4, data", "table 5, partitions", "section 5, memory left"
ENCODER_SHARE = "section 3, the encoder's share of the time"
GPU_DAYS = "GPU-days of an epoch"

PUBLISHED_GROUP = 4.6
"""Samples of a group of ISF (table 4)."""

PUBLISHED_ENCODER_SHARE, SHARE_TILES = 0.40, 9
"""Of InternVL-Chat-1.5, almost, with so many images and 4K of text (section 3)."""

SEARCH, PROFILE, PROFILE_OF_GROUPS = "search", "profile of random batches", "profile of groups"
"""Partitions of table 5: the paper's search, and exact ones by forwards, of padded random batches or of groups of ISF.

The paper does not say on which samples its partition by profile was profiled.
"""
CHUNKS = (1, 2, 4)
"""Virtual stages of a rank that our best plans may have."""

PLANNED = ("internvit_6b_llama3_8b", "internvit_6b_internlm2_20b")
"""Models for which our best plan is searched; for larger ones that takes minutes, as no two rows are alike."""

ASSUMED = (
    "samples are described (configs/data/internvl_1_2_like.gin), not measured",
    "a step has 1,024 samples, a padded microbatch 4",
    "the encoder has tp 1: 25 heads are not divided by 2, 4 or 8 ranks",
)


def source_of(name: str, data_file: str = "internvl_1_2_like") -> SampleSource:
    """The samples that a model is trained on."""
    cli.parse_gin((f"models/{name}.gin", f"data/{data_file}.gin"))
    return SampleSource(cli.configured(SyntheticData).kinds[0][0], cli.configured(ModelConfig))


def rows(plans: BestPlans) -> Iterator[PaperRow]:
    """All rows of the models with InternViT-6B."""
    epochs = {name: simulate_epochs(source_of(name), ranks, CLUSTER) for name, ranks in LAYOUTS.items()}
    for name, of_model in epochs.items():
        yield from main_rows(name, MODEL_NAMES[name], of_model, plans)
    for name, of_model in epochs.items():
        yield from zero_rows(MODEL_NAMES[name], of_model)
    for name, of_model in epochs.items():
        yield from step_rows(MODEL_NAMES[name], of_model)
    yield from data_rows(MODEL_NAMES[SHOWN], source_of(SHOWN), LAYOUTS[SHOWN])
    for name, of_model in epochs.items():
        yield from partition_rows(MODEL_NAMES[name], of_model)
    yield from memory_rows(MODEL_NAMES[SHOWN], epochs[SHOWN])
    yield encoder_share_row(MODEL_NAMES[SHOWN], source_of(SHOWN), epochs[SHOWN])


def days_figure(epoch: Simulated) -> Figure:
    """GPU-days of a simulated epoch."""
    timeline = epoch.timeline
    return step_figure(timeline.step, timeline.error_families, epoch.gpu_days / timeline.step)


def gain_figure(later: Simulated, earlier: Simulated) -> Figure:
    """How many times as few GPU-days."""
    families = (later.timeline.error_families, earlier.timeline.error_families)
    return ratio_figure(earlier.gpu_days / later.gpu_days, *families)


def main_rows(name: str, title: str, epochs: BalancedEpochs, plans: BestPlans) -> Iterator[PaperRow]:
    """GPU-days before balancing and after all steps of it, beside our best plan for the same groups."""
    published = PAPER_GPU_DAYS.get(name)
    before, after = (exactly(published.before), exactly(published.after)) if published else (None, None)
    balanced = _row(MAIN, title, OMNIBAL, GPU_DAYS, "GPU-days", days_figure(epochs.memory))
    gain = _row(MAIN, title, OMNIBAL, "times as few GPU-days", "times", gain_figure(epochs.memory, epochs.start))
    if name in PLANNED:
        even = epochs.even
        best = plans.best(dataclasses.replace(even.problem, chunk_choices=CHUNKS), f"InternViT-{title}")
        epoch = even.epoch(best.simulated.timeline)
        balanced = dataclasses.replace(balanced, best=days_figure(epoch), best_plan=best.words)
        gain = dataclasses.replace(gain, best=gain_figure(epoch, epochs.start), best_plan=best.words)
    yield _row(MAIN, title, START, GPU_DAYS, "GPU-days", days_figure(epochs.start), published=before)
    yield dataclasses.replace(balanced, published=after)
    ratio = exactly(published.before / published.after) if published else None
    yield dataclasses.replace(gain, published=ratio)


def zero_rows(title: str, epochs: BalancedEpochs) -> Iterator[PaperRow]:
    """GPU-days with fully sharded weights, of padded samples and of groups of ISF; none where that does not fit."""
    for system, setting in ((START, epochs.padded), ("ISF", epochs.even)):
        simulated = run_policy(setting.problem, "fsdp").simulated
        if simulated:
            epoch = setting.epoch(simulated.timeline)
            row = _row(ZERO, title, f"{ZERO_3}, {system}", GPU_DAYS, "GPU-days", days_figure(epoch))
            yield dataclasses.replace(row, assumptions=(*ASSUMED, "our policy `fsdp`, which divides layers' weights"))


def step_rows(title: str, epochs: BalancedEpochs) -> Iterator[PaperRow]:
    """GPU-days after each step of balancing."""
    names = (START, "+ data", "+ partition", "+ recomputation")
    for system, epoch in zip(names, epochs.in_order, strict=True):
        yield _row(STEPS, title, system, GPU_DAYS, "GPU-days", days_figure(epoch))


def data_rows(title: str, source: SampleSource, ranks: Layout) -> Iterator[PaperRow]:
    """Padding, idle replicas, samples of a batch and GPU-days of four ways to form batches; stages by parameters."""
    sizes = source.draw(DRAWN, np.random.default_rng(0))
    capacity = np.array(source.capacity(sizes))
    for name, algorithm in PADDED_BASELINES.items():
        random, label = np.random.default_rng(0), name.replace("_", "-")
        groups = algorithm(PADDED_SAMPLES, ranks.dp)(sizes, np.full(2, np.inf), random)
        groups = groups.take(np.flatnonzero(groups.lengths == PADDED_SAMPLES))
        steps, _ = consecutive_steps(groups, sizes, ranks.dp, random)
        steps = random.permutation(steps)
        padded = groups.largest(sizes) * groups.lengths[:, None]
        yield from _group_rows(title, label, groups, sizes, padded, steps, pad_ratio(groups, sizes)[:, 1].mean())
        members = np.stack([groups[number] for number in steps.ravel()])
        setting = make_setting(source.model, CLUSTER, ranks, source.padded(sizes, members), PADDED_SAMPLES)
        yield _row(DATA, title, label, GPU_DAYS, "GPU-days", days_figure(_by_parameters(setting)))
    policy = IterativeSamplingAndFiltering(threshold=(capacity[0], TOKENS - MARGIN), rounds=ROUNDS)
    fitting = sizes[(sizes <= capacity).all(axis=1)]
    groups = policy(fitting, capacity, np.random.default_rng(0))
    steps, _ = balanced_steps(groups, fitting, ranks.dp, np.random.default_rng(0))
    yield from _group_rows(title, "ISF", groups, fitting, groups.sums(fitting), steps, 0.0)
    grouped = source.grouped(sizes, np.random.default_rng(0), static_shapes=False)
    setting = make_setting(source.model, CLUSTER, ranks, grouped, ranks.tp)
    yield _row(DATA, title, "ISF", GPU_DAYS, "GPU-days", days_figure(_by_parameters(setting)))


def _by_parameters(setting: Setting) -> Simulated:
    counts = PARTITION_METHODS["parameters"](setting.chain, setting.layout.pp)
    assert counts is not None
    return setting.simulate(uniform_stages(setting.chain, counts, "full"))


def _group_rows(
    title: str, system: str, groups: Groups, sizes: SampleSizes, totals: np.ndarray, steps: np.ndarray, padding: float
) -> Iterator[PaperRow]:
    idle = dist_ratio(totals, steps).mean(axis=0)
    published = exactly(PUBLISHED_GROUP) if system == "ISF" else None
    for quantity, value in (("pad ratio", padding), ("dist ratio, vision", idle[0]), ("dist ratio, text", idle[1])):
        yield _row(DATA, title, system, quantity, "share", _computed(value))
    mean = _computed(groups.lengths.mean())
    yield _row(DATA, title, system, "samples of a batch", "samples", mean, published=published)


def partition_rows(title: str, epochs: BalancedEpochs) -> Iterator[PaperRow]:
    """GPU-days and spread of the paper's partitions of the groups' layers, all recomputed."""
    even, padded = epochs.even, epochs.padded
    partitions = (
        ("parameters", "parameters", even),
        ("layers", "layers", even),
        (PROFILE, "profile", padded),
        (PROFILE_OF_GROUPS, "profile", even),
    )
    for system, method, profiled in partitions:
        counts = PARTITION_METHODS[method](profiled.chain, even.layout.pp)
        assert counts is not None
        yield from _partition_rows(title, system, even, uniform_stages(even.chain, counts, "full"))
    candidates = [
        uniform_stages(even.chain, counts, "full")
        for counts in ranked_candidates(even.chain, even.layout.pp, RADIUS, BEST)
    ]
    best = min(candidates, key=lambda stages: even.simulate(stages).gpu_days)
    yield from _partition_rows(title, SEARCH, even, best)


def _partition_rows(title: str, method: str, even: Setting, stages: ChainStages) -> Iterator[PaperRow]:
    assumed = (
        f"search: radius {RADIUS}, the best {BEST} of VAR + SUM, the shortest simulated step of them",
        "the paper does not say what was profiled: padded batches of random samples, or groups",
    )
    row = _row(PARTITIONS, title, method, GPU_DAYS, "GPU-days", days_figure(even.simulate(stages)))
    yield dataclasses.replace(row, assumptions=(*ASSUMED, *assumed))
    yield _row(PARTITIONS, title, method, "slowest stage over the mean", "times", _computed(even.spread(stages)))


def memory_rows(title: str, epochs: BalancedEpochs) -> Iterator[PaperRow]:
    """Memory left on a device of every stage, before recomputation is chosen layer by layer and after."""
    room = CLUSTER.usable_memory
    for system, epoch in (("all recomputed", epochs.stages), ("chosen by layer", epochs.memory)):
        timeline = epoch.timeline
        for stage, lane in enumerate(timeline.lanes, start=1):
            left = _computed(room - timeline.lane_peak_memory(lane))
            yield _row(MEMORY, f"{title}, stage {stage}", system, "bytes left", "bytes", left)


def encoder_share_row(title: str, source: SampleSource, epochs: BalancedEpochs) -> PaperRow:
    """The encoder's share of the forwards of all layers, for a row of 9 tiles and 4,096 tokens."""
    attended = (source.kind.tile_side // source.encoder.patch) ** 2 + source.encoder.prefix_tokens
    tiles = SHARE_TILES
    loads = {
        source.encoder.name: make_loads(tiles * attended, tiles * attended**2, tiles),
        source.model.backbone.name: make_loads(TOKENS, TOKENS**2, 1),
    }
    problem, alone = epochs.even.problem, LayerParallelism()
    seconds = {
        module.name: module.layer_count * float(problem.costs.forward(module.layer, loads[module.name], alone).total)
        for module in problem.graph.modules
    }
    encoder, backbone = seconds[source.encoder.name], seconds[source.model.backbone.name]
    slow, fast = (step_range(encoder, ("encoder",)), step_range(backbone, ("pipeline",)))
    range_ = Band(slow.least / (slow.least + fast.most), slow.most / (slow.most + fast.least))
    figure = Figure("simulated", exactly(encoder / (encoder + backbone)), range_)
    row = _row(ENCODER_SHARE, title, "without ranks", "share of the forwards", "share", figure)
    return dataclasses.replace(
        row,
        published=exactly(PUBLISHED_ENCODER_SHARE),
        assumptions=("stacks of layers alone, on one device; a mean row of 9 tiles of 448 pixels and 4,096 tokens",),
    )


def _computed(value: float) -> Figure:
    return Figure("computed", exactly(value), None)


def _row(
    place: str,
    title: str,
    system: str,
    quantity: str,
    unit: Unit,
    figure: Figure,
    *,
    published: Band | None = None,
) -> PaperRow:
    return PaperRow(
        paper=PAPER,
        place=place,
        row=title,
        system=system,
        quantity=quantity,
        unit=unit,
        published=published,
        at_layout=figure,
        assumptions=ASSUMED,
    )
