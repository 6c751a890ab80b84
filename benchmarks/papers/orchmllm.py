"""OrchMLLM's figures (arXiv 2503.23830, section 8): fully sharded models, every phase balanced, and our best plan.

Steps are those of `benchmarks.dispatch`. Our best plan is planned by all policies for rows of 4,096 tokens packed from
such samples, as many backbone tokens a step.
"""

import dataclasses
import functools
import statistics
import time
from collections.abc import Iterator
from typing import NamedTuple

from benchmarks.dispatch import settings
from benchmarks.dispatch.arrangement import NOT_NODE_WISE, ORCHMLLM, UNBALANCED, Balancing, arrange
from benchmarks.dispatch.balance_figures import FITTED_WAYS, largest_mini_batch
from benchmarks.dispatch.megatron import simulate_megatron
from benchmarks.dispatch.model_rows import ABLATIONS, NONE, OURS, PACKED
from benchmarks.dispatch.samples import StepSamples, described, draw_step
from benchmarks.dispatch.settings import ModelSetting
from benchmarks.dispatch.steps import CLUSTER, Step, simulate_balanced
from benchmarks.dispatch.traffic import all_gather_seconds, most_sent_between_nodes
from benchmarks.papers.best_plans import BestPlan, BestPlans
from benchmarks.papers.paper_rows import Band, Figure, PaperName, PaperRow, Unit, exactly
from benchmarks.papers.ranges import rate_figure, ratio_figure
from configs.architectures import ModelConfig
from configs.workloads import SyntheticData, Workload
from mmjax.planning.problem import make_problem, workload_statistics
from sharding.costs.analytic import AnalyticCostModel
from sharding.costs.published_errors import Family, error_families
from sharding.planners.problem import PlanningProblem
from sharding.simulation.timeline import Timeline
from sharding.specs.layers.layer import LoadColumn
from sharding.specs.modules import module_graph
from sharding.specs.row_load_statistics import draw_sample_loads

PAPER: PaperName = "orchmllm"
MEGATRON, NO_BALANCE, ORCH = "Megatron-LM", "OrchMLLM without balance", "OrchMLLM"
MODEL_NAMES = {"mllm_10b": "MLLM-10B", "mllm_18b": "MLLM-18B", "mllm_84b": "MLLM-84B"}
OVERALL_MFU, OVERALL = "section 8.1, overall MFU", "section 8.1, overall throughput"
ABLATION, LARGEST = "section 8.3, ablations on 128 GPUs", "section 8.3, the largest mini-batch that fits"
OVERHEAD, TRAFFIC = "section 8.2, the dispatcher's time", "section 8.2, bytes between nodes"
THROUGHPUT, GAIN = "backbone tokens a second and GPU", "throughput over Megatron-LM"
OVER_UNBALANCED = "throughput over no balance"
NODE_WISE = {"without node-wise placement": NOT_NODE_WISE, ORCH: ORCHMLLM}
REPEATS = 3
PLANNED = ("mllm_84b",)
"""Models for which our best plan is searched; on so many devices that takes minutes."""

MEAN_OF = 2_000
"""Samples from which their mean length is taken."""

ASSUMED = (
    "samples are described (configs/data/speech_mix.gin), not measured",
    "every module is one stage on all devices; exchanges take the links between phases, and nothing hides them",
    "Megatron-LM: tp 8, pp 2 / 4 / 10, encoders beside the first stage's share of the backbone, collectives overlap",
)
BEST_ASSUMED = "best: rows of 4,096 tokens packed from such samples, as many tokens a step, a whole row a microbatch"


class StepFigures(NamedTuple):
    """What rows say of a step.

    Attributes:
        seconds: Its seconds.
        mfu: MFU by both countings of causal squares.
        tokens: Backbone tokens a second and device.
        families: Families of runs whose errors it may have.
    """

    seconds: float
    mfu: Band
    tokens: float
    families: tuple[Family, ...]

    def over(self, other: "StepFigures") -> Figure:
        """Its throughput over another step's."""
        return ratio_figure(self.tokens / other.tokens, self.families, other.families)

    @property
    def mfu_figure(self) -> Figure:
        """The MFU with its range."""
        return rate_figure(self.mfu, self.seconds, self.families)

    @property
    def tokens_figure(self) -> Figure:
        """The throughput with its range."""
        return rate_figure(exactly(self.tokens), self.seconds, self.families)


def of_step(samples: StepSamples, step: Step) -> StepFigures:
    """The figures of a fully sharded step."""
    families = error_families(step.plan, module_graph(samples.model))
    return StepFigures(step.seconds, Band(step.mfu, step.mfu_whole_squares), step.tokens_per_device, families)


def of_timeline(timeline: Timeline, devices: int) -> StepFigures:
    """The figures of a simulated plan on so many devices, busy or not."""
    mfu = Band(timeline.mfu, timeline.mfu_whole_squares)
    return StepFigures(timeline.step, mfu, timeline.tokens_per_second / devices, timeline.error_families)


def rows(plans: BestPlans) -> Iterator[PaperRow]:
    """All rows."""
    gains = []
    for name, setting in settings.SETTINGS.items():
        model, data = described(name, setting.image_bound)
        samples = draw_step(model, data, settings.DEVICES, setting.mini_batches.balanced)
        best = None
        if name in PLANNED:
            title = f"{MODEL_NAMES[name]} on {settings.DEVICES:,}"
            best = plans.best(packed_problem(name), title, search=False)
        model_rows = [*overall_rows(name, setting, samples, data, best)]
        gains += [row for row in model_rows if row.quantity == GAIN]
        yield from model_rows
        few = draw_step(model, data, settings.ABLATION_DEVICES, 2 * setting.mini_batches.ablation)
        yield from ablation_rows(MODEL_NAMES[name], few.first(setting.mini_batches.ablation), data)
        yield from largest_rows(MODEL_NAMES[name], few, data)
        if name == "mllm_10b":
            yield from overhead_rows(samples.first(settings.PLANNING_SAMPLES))
    yield most_row(gains)


@functools.cache
def packed_problem(name: str) -> PlanningProblem:
    """The problem of rows packed from samples of a model of `settings.SETTINGS`, with as many tokens as they have."""
    setting = settings.SETTINGS[name]
    model, data = described(name, setting.image_bound)
    return problem_of_packed(model, data, settings.DEVICES, setting.mini_batches.balanced)


def problem_of_packed(model: ModelConfig, data: SyntheticData, replicas: int, mini_batch: int) -> PlanningProblem:
    """The problem of packed rows with about as many tokens a replica as so many samples, in whole rows."""
    drawn, backbone = workload_statistics(Workload(model, data, 1)), model.backbone.name
    samples = draw_sample_loads(data, model, MEAN_OF)
    row, sample = (float(loads.mean_load(backbone)[LoadColumn.TOKENS]) for loads in (drawn, samples))
    rows = replicas * max(1, round(mini_batch * sample / row))
    return make_problem(Workload(model, data, rows), drawn, CLUSTER, replicas)


def overall_rows(
    name: str, setting: ModelSetting, samples: StepSamples, data: SyntheticData, best: BestPlan | None
) -> Iterator[PaperRow]:
    """MFU and throughput of Megatron-LM, without balance and with it."""
    devices, title = samples.replicas, MODEL_NAMES[name]
    published = {ORCH: settings.PAPER_MFU.get(name)}
    unbalanced = samples.first(setting.mini_batches.unbalanced)
    steps = {
        MEGATRON: of_timeline(simulate_megatron(samples, data, setting.megatron, devices).timeline, devices),
        NO_BALANCE: of_step(unbalanced, _step(unbalanced, data, UNBALANCED)),
        ORCH: of_step(samples, _step(samples, data, ORCHMLLM)),
    }
    planned = of_timeline(best.simulated.timeline, devices) if best else None
    for system, step in steps.items():
        mfu = published.get(system)
        row = _row(OVERALL_MFU, title, system, "MFU", "share", step.mfu_figure)
        row = dataclasses.replace(row, published=None if mfu is None else exactly(mfu))
        yield _with_best(row, best, planned and planned.mfu_figure)
        row = _row(OVERALL, title, system, THROUGHPUT, "tokens/s", step.tokens_figure)
        yield _with_best(row, best, planned and planned.tokens_figure)
    for quantity, other in ((GAIN, MEGATRON), (OVER_UNBALANCED, NO_BALANCE)):
        row = _row(OVERALL, title, ORCH, quantity, "times", steps[ORCH].over(steps[other]))
        yield _with_best(row, best, planned and planned.over(steps[other]))


def _with_best(row: PaperRow, best: BestPlan | None, figure: Figure | None) -> PaperRow:
    """The row with our best plan, if there is one and it is one of OrchMLLM's own."""
    if row.system != ORCH or best is None:
        return row
    return dataclasses.replace(row, best=figure, best_plan=best.words, assumptions=(*row.assumptions, BEST_ASSUMED))


def most_row(gains: list[PaperRow]) -> PaperRow:
    """The most of several models, which the paper states."""
    most = max((row.at_layout for row in gains if row.at_layout), key=lambda figure: figure.value.most)
    row = _row(OVERALL, "the most of the models", ORCH, GAIN, "times", most)
    return dataclasses.replace(row, published=exactly(settings.PAPER_MOST_OVER_MEGATRON))


def ablation_rows(title: str, samples: StepSamples, data: SyntheticData) -> Iterator[PaperRow]:
    """MFU of every way of balancing, all with the same samples."""
    names = {NONE: NO_BALANCE, OURS: ORCH, PACKED: "every phase, clips packed"}
    for label, balancing in ABLATIONS.items():
        step = of_step(samples, _step(samples, data, balancing))
        yield _row(ABLATION, title, names.get(label, label), "MFU", "share", step.mfu_figure)
    arrangement = arrange(samples, ORCHMLLM, CLUSTER.devices_per_node)
    costs = AnalyticCostModel(CLUSTER, element_bytes=samples.model.element_bytes)
    gathering = all_gather_seconds(arrangement.exchanges, samples.replicas, costs)
    step = simulate_balanced(samples, data, ORCHMLLM, arrangement, exchange_seconds=gathering)
    figure = of_step(samples, step).mfu_figure
    yield _row(ABLATION, title, "all-gathers instead of all-to-alls", "MFU", "share", figure)


def largest_rows(title: str, samples: StepSamples, data: SyntheticData) -> Iterator[PaperRow]:
    """The largest mini-batch that fits with full recomputation."""
    for label, balancing in FITTED_WAYS.items():
        figure = _computed(largest_mini_batch(samples, data, balancing))
        yield _row(LARGEST, title, label, "samples of a replica", "samples", figure)


def overhead_rows(samples: StepSamples, counts: tuple[int, ...] = settings.PLANNING_REPLICAS) -> Iterator[PaperRow]:
    """Milliseconds of planning a step on this machine, and the bytes that a replica sends to other nodes at most."""
    for replicas in counts:
        some, title = samples.first(samples.mini_batch, replicas), f"{replicas:,} GPUs, {samples.mini_batch} samples"
        for system, balancing in NODE_WISE.items():
            run = functools.partial(arrange, some, balancing, CLUSTER.devices_per_node)
            seconds = []
            for _ in range(REPEATS):
                begin = time.process_time()
                arrangement = run()
                seconds.append(1e3 * (time.process_time() - begin))
            timed = Figure("measured", exactly(statistics.median(seconds)), Band(min(seconds), max(seconds)))
            yield _row(OVERHEAD, title, system, "milliseconds of a step's plan", "milliseconds", timed)
            sent = most_sent_between_nodes(arrangement.exchanges, replicas, CLUSTER.devices_per_node)
            yield _row(TRAFFIC, title, system, "bytes of the replica that sends most", "bytes", _computed(sent))


def _step(samples: StepSamples, data: SyntheticData, balancing: Balancing) -> Step:
    return simulate_balanced(samples, data, balancing, arrange(samples, balancing, CLUSTER.devices_per_node))


def _computed(value: float) -> Figure:
    return Figure("computed", exactly(value), None)


def _row(place: str, title: str, system: str, quantity: str, unit: Unit, figure: Figure) -> PaperRow:
    return PaperRow(
        paper=PAPER,
        place=place,
        row=title,
        system=system,
        quantity=quantity,
        unit=unit,
        at_layout=figure,
        assumptions=ASSUMED,
    )
