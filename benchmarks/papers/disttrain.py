"""DistTrain's steps (arXiv 2408.04275, section 8): Megatron-LM's layout, the disaggregated one, and our best plan.

The paper's text says neither the layouts that DistTrain chose nor how its MFU counts the squares of causal attention:
its rows have our policy `disaggregated` with rows reordered, and both countings.
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import NamedTuple

from benchmarks.papers.best_plans import BestPlans
from benchmarks.papers.paper_rows import Figure, PaperName, PaperRow, exactly
from benchmarks.papers.ranges import gain_figure, mfu_figure, throughput_figure
from benchmarks.planner.choices import FEW_DEVICES, FEW_ROWS
from benchmarks.planner.disttrain_models import (
    BATCH,
    DEVICES,
    PAPER_MFU,
    PAPER_RATIO,
    RIGID_PP,
    SETTINGS,
    simulate_reordered,
)
from configs.architectures import ModelConfig
from configs.workloads import SyntheticData, Workload
from mmjax import cli
from mmjax.planning.cluster_files import read_cluster
from mmjax.planning.problem import make_problem, workload_statistics
from sharding.planners.policies import disaggregated, rigid
from sharding.planners.policies.best_plan import best_of_policy, best_simulated
from sharding.planners.problem import PlanningProblem
from sharding.simulation.timeline import Timeline

PAPER: PaperName = "disttrain"
DATA, CLUSTER = "data/laion_like.gin", "disttrain_a800"
MEGATRON, DISTTRAIN, RATIO = "Megatron-LM", "DistTrain", "devices by FLOPs"
MODEL_NAMES = {"mllm_9b": "MLLM-9B", "mllm_15b": "MLLM-15B", "mllm_72b": "MLLM-72B"}
FROZEN = {title: parts for title, parts in SETTINGS.items() if title != "all trained"}
"""Trained parts of the frozen settings."""

PUBLISHED_MFU = {("mllm_72b", DISTTRAIN): exactly(PAPER_MFU)}
LEAST_MEGATRON_MFU = 0.20
"""About as low as Megatron-LM's MFU was (introduction, section 2.1)."""

OVERALL, OVER_MEGATRON = "section 8.1, overall MFU", "section 8.1, overall throughput"
ORCHESTRATION, REORDERING = "section 8.2, orchestration", "section 8.2, reordering"
FROZEN_MFU, FROZEN_THROUGHPUT = "figure 19, frozen, MFU", "figure 20, frozen, throughput"
THROUGHPUT, GAIN = "backbone tokens a second", "throughput over Megatron-LM"

ASSUMED = (
    "rows drawn from configs/data/laion_like.gin, half of whose images are generated",
    "Megatron-LM: backbone in 1 / 2 / 10 stages, encoder and generator one each, tp 8, collectives exposed",
    "DistTrain: our policy `disaggregated`, rows reordered; the paper's own layouts are not stated",
)


@functools.cache
def problem_of(name: str, trainable: tuple[str, ...], devices: int, rows: int) -> PlanningProblem:
    """A model of DistTrain's on its A800s, with rows of 8,192 tokens."""
    cli.parse_gin((f"models/{name}.gin", DATA))
    workload = Workload(cli.configured(ModelConfig), cli.configured(SyntheticData), rows, trainable)
    return make_problem(workload, workload_statistics(workload), read_cluster(CLUSTER), devices)


class Steps(NamedTuple):
    """The steps of one problem.

    Attributes:
        problem: The problem.
        megatron: In Megatron-LM's layout.
        drawn: Disaggregated, rows as drawn.
        reordered: The same, rows reordered.
        best: In our best plan.
        best_plan: That plan in words.
    """

    problem: PlanningProblem
    megatron: Timeline
    drawn: Timeline
    reordered: Timeline
    best: Timeline
    best_plan: str


def steps_of(problem: PlanningProblem, pp: int, title: str, plans: BestPlans, *, search: bool = True) -> Steps:
    """Simulates all systems.

    Args:
        problem: The problem.
        pp: Stages of the backbone in Megatron-LM's layout.
        title: The problem in words, for progress.
        plans: Where the best plan comes from.
        search: As in `BestPlans.best`.
    """
    megatron = best_simulated(problem, rigid.plans(problem, pp)).timeline
    disaggregated_plan = best_simulated(problem, disaggregated.plans(problem))
    best = plans.best(problem, title, search=search)
    return Steps(
        problem=problem,
        megatron=megatron,
        drawn=disaggregated_plan.timeline,
        reordered=simulate_reordered(problem, disaggregated_plan.plan),
        best=best.simulated.timeline,
        best_plan=best.words,
    )


def rows(plans: BestPlans) -> Iterator[PaperRow]:
    """All rows of steps: overall, orchestration, reordering, and frozen training."""
    overall = {
        name: steps_of(problem_of(name, ("all",), DEVICES, BATCH), pp, f"{MODEL_NAMES[name]} on {DEVICES:,}", plans)
        for name, pp in RIGID_PP.items()
    }
    for name, steps in overall.items():
        yield from mfu_rows(OVERALL, name, MODEL_NAMES[name], steps)
        yield from throughput_rows(OVER_MEGATRON, MODEL_NAMES[name], steps)
    yield from summary_rows(overall)
    few = {}
    for name, pp in RIGID_PP.items():
        few[name] = steps_of(_few(name, ("all",)), pp, f"{MODEL_NAMES[name]} on {FEW_DEVICES}", plans)
        yield from orchestration_rows(MODEL_NAMES[name], few[name])
    for devices, some in ((DEVICES, overall), (FEW_DEVICES, few)):
        yield from (reordering_row(f"{MODEL_NAMES[name]}, {devices:,} GPUs", steps) for name, steps in some.items())
    for setting, trainable in FROZEN.items():
        for name, pp in RIGID_PP.items():
            title = f"{MODEL_NAMES[name]}, {setting}"
            steps = steps_of(_few(name, trainable), pp, f"{title}, on {FEW_DEVICES}", plans, search=False)
            yield from mfu_rows(FROZEN_MFU, name, title, steps)
            yield from throughput_rows(FROZEN_THROUGHPUT, title, steps)


def _few(name: str, trainable: tuple[str, ...]) -> PlanningProblem:
    return problem_of(name, trainable, FEW_DEVICES, FEW_ROWS[name])


def mfu_rows(place: str, name: str, title: str, steps: Steps) -> Iterator[PaperRow]:
    """MFU of Megatron-LM and DistTrain, of this beside our best."""
    published = PUBLISHED_MFU if place == OVERALL else {}
    megatron = _row(place, title, MEGATRON, "MFU", mfu_figure(steps.megatron))
    yield dataclasses.replace(megatron, published=published.get((name, MEGATRON)))
    ours = _row(place, title, DISTTRAIN, "MFU", mfu_figure(steps.reordered), steps, mfu_figure(steps.best))
    yield dataclasses.replace(ours, published=published.get((name, DISTTRAIN)))


def throughput_rows(place: str, title: str, steps: Steps) -> Iterator[PaperRow]:
    """Backbone tokens a second of both systems, and how many times Megatron-LM's they are."""
    best = throughput_figure(steps.best)
    unit = "tokens/s"
    yield dataclasses.replace(_row(place, title, MEGATRON, THROUGHPUT, throughput_figure(steps.megatron)), unit=unit)
    yield dataclasses.replace(
        _row(place, title, DISTTRAIN, THROUGHPUT, throughput_figure(steps.reordered), steps, best), unit=unit
    )
    yield dataclasses.replace(
        _row(
            place,
            title,
            DISTTRAIN,
            GAIN,
            gain_figure(steps.reordered, steps.megatron),
            steps,
            gain_figure(steps.best, steps.megatron),
        ),
        unit="times",
    )


def summary_rows(overall: dict[str, Steps]) -> Iterator[PaperRow]:
    """The two figures that the paper states of several models together."""
    least = min(overall.values(), key=lambda steps: steps.megatron.mfu)
    yield dataclasses.replace(
        _row(OVERALL, "the least of the models", MEGATRON, "MFU", mfu_figure(least.megatron)),
        published=exactly(LEAST_MEGATRON_MFU),
    )
    gains, best_gains = (
        [gain_figure(timeline, steps.megatron) for steps, timeline in pairs]
        for pairs in (
            [(steps, steps.reordered) for steps in overall.values()],
            [(steps, steps.best) for steps in overall.values()],
        )
    )
    yield dataclasses.replace(
        _row(OVER_MEGATRON, "the most of the models", DISTTRAIN, GAIN, _largest(gains)),
        best=_largest(best_gains),
        published=exactly(PAPER_RATIO),
        unit="times",
    )


def orchestration_rows(title: str, steps: Steps) -> Iterator[PaperRow]:
    """MFU of three ways to give modules their devices, without reordering."""
    by_flops = best_of_policy(steps.problem, disaggregated.flops_proportional_plans).timeline
    yield _row(ORCHESTRATION, title, MEGATRON, "MFU", mfu_figure(steps.megatron))
    yield _row(ORCHESTRATION, title, RATIO, "MFU", mfu_figure(by_flops))
    yield _row(ORCHESTRATION, title, DISTTRAIN, "MFU", mfu_figure(steps.drawn), steps, mfu_figure(steps.best))


def reordering_row(title: str, steps: Steps) -> PaperRow:
    """Throughput with rows reordered over the same plan with rows as drawn."""
    row = _row(REORDERING, title, DISTTRAIN, "throughput over random order", gain_figure(steps.reordered, steps.drawn))
    return dataclasses.replace(row, unit="times")


def _largest(figures: list[Figure]) -> Figure:
    return max(figures, key=lambda figure: figure.value.most)


def _row(
    place: str,
    title: str,
    system: str,
    quantity: str,
    at_layout: Figure,
    steps: Steps | None = None,
    best: Figure | None = None,
) -> PaperRow:
    """A row of a share; with `best`, of our best plan too."""
    return PaperRow(
        paper=PAPER,
        place=place,
        row=title,
        system=system,
        quantity=quantity,
        unit="share",
        at_layout=at_layout,
        best=best,
        best_plan=steps.best_plan if steps and best else "",
        assumptions=ASSUMED,
    )
