"""Optimus's tables (arXiv 2408.03505, section 5): Megatron-LM's forms, colocated plans, and our best plan.

At the paper's layout, colocated plans have the backbone on its DP x PP x TP, with one chunk a rank or V of them, and a
copy of the encoder on the devices of each pipeline rank, or the encoder on PP ranks as the backbone; whichever takes
the shortest step. The paper does not state the encoder's own layout. Rows have two samples, the paper's microbatch, in
every system and in our best plan, for which rows of one sample can be better (`benchmarks/results/colocated.md`).
"""

import dataclasses
import itertools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from benchmarks.colocated import scheduling, settings
from benchmarks.colocated.cases import OptimusCase, case_of
from benchmarks.colocated.settings import OptimusSetting
from benchmarks.colocated.systems import ALPA, COLOCATED, FSDP, MEGATRON, MEGATRON_BALANCED, systems_of
from benchmarks.papers.best_plans import BestPlan, BestPlans
from benchmarks.papers.paper_rows import Band, Figure, PaperName, PaperRow, Unit, exactly
from benchmarks.papers.ranges import gain_figure, seconds_figure, share_figure
from sharding.planners.simulated_plan import SimulatedPlan
from sharding.plans.plan_error import PlanError
from sharding.schedules.colocation.bubble_use import bubble_use
from sharding.schedules.colocation.colocated import coarse_colocated, colocated

PAPER: PaperName = "optimus"
OPTIMUS = "Optimus"
WEAK, STRONG = "figure 15, weak scaling", "table 5, strong scaling"
SMALL, TWO = "table 4, small model", "figure 16, two encoders"
BUBBLES, MEMORY = "table 1, bubbles", "section 5.3.1, memory"
SCHEDULER, EFFICIENCY = "section 5.3, the scheduler's time", "section 5.3.2, scheduling efficiency"
MEAN = "introduction, mean of the settings"
SECONDS, OVER_BALANCED = "seconds of a step", "throughput over Megatron-LM balanced"
WEAK_NAMES = dict(zip(settings.WEAK_SCALING, ("Model A", "Model B", "Model C", "Model D"), strict=True))

ASSUMED = (
    "2,048 patches a sample and encoder; the paper does not say how many",
    "Megatron-LM: the whole encoder beside the first stage's equal share of the backbone, read literally",
    "Optimus: the encoder on one pipeline rank or on PP of them, whichever is shorter; its collectives are exposed",
)


class Steps(NamedTuple):
    """The steps of one setting.

    Attributes:
        case: The setting.
        title: It in words.
        systems: At the paper's layouts, by the paper's name of the system.
        best: Our best plan.
    """

    case: OptimusCase
    title: str
    systems: Mapping[str, SimulatedPlan]
    best: BestPlan


def rows(plans: BestPlans) -> Iterator[PaperRow]:
    """All rows."""
    weak = [steps_of(case_of(setting), name, plans) for setting, name in WEAK_NAMES.items()]
    for steps in weak:
        yield from step_rows(WEAK, steps)
    strong = [steps_of(case_of(setting), f"{setting.devices:,} GPUs", plans) for setting in settings.STRONG_SCALING]
    for steps in strong:
        yield from step_rows(STRONG, steps, strong_published(steps.case.setting))
    yield mean_row([*weak, *strong])
    yield from small_rows(case_of(settings.SMALL), plans)
    for setting in settings.TWO_ENCODERS:
        yield from step_rows(TWO, steps_of(case_of(setting), two_title(setting), plans))
    largest = strong[-1]
    yield from bubble_rows(largest)
    yield from (memory_row(steps) for steps in (*weak, *strong))
    for steps in strong:
        yield from scheduling_rows(steps.case, f"{steps.title}, {_microbatches(steps.case.setting)} microbatches")


def steps_of(case: OptimusCase, title: str, plans: BestPlans) -> Steps:
    """Simulates all systems of a setting; "Megatron-LM balanced" and the colocated plan need one encoder."""
    known = systems_of(case)
    systems = {name: known[name](case) for name in (MEGATRON, MEGATRON_BALANCED) if name in known}
    if len(case.model.encoders) == 1:
        systems[OPTIMUS] = paper_colocated(case)
    best = plans.best(case.problem, f"{case.setting.title}", search=False)
    return Steps(case, title, systems, best)


def paper_colocated(case: OptimusCase) -> SimulatedPlan:
    """The shortest of the colocated steps with one chunk a rank and with the paper's chunks, whole copies or not.

    The encoder has a copy on every pipeline rank, or the pipeline ranks of the backbone.

    Raises:
        PlanError: Neither fits.
    """
    assert case.setting.ranks is not None
    simulated, reason = [], PlanError("no chunks")
    for chunks, encoder_pp in itertools.product((1, case.setting.ranks.chunks), (1, case.setting.ranks.pp)):
        try:
            plan = scheduling.colocated_plan(case.problem, case.setting, chunks, encoder_pp)
        except PlanError as error:
            reason = error
            continue
        simulated.append(SimulatedPlan(plan, case.problem.simulate(plan)))
    if not simulated:
        raise reason
    return min(simulated, key=lambda each: each.timeline.step)


def two_title(setting: OptimusSetting) -> str:
    """The paper's name of a model with two encoders, such as "DualEnc(22B, 5B)"."""
    sizes = setting.model.removesuffix("_gpt_175b").removeprefix("vit_").split("_vit_")
    return f"DualEnc({', '.join(map(str.upper, sizes))})"


def strong_published(setting: OptimusSetting) -> Mapping[tuple[str, str], Band]:
    """What is published of the strong scaling, by system and quantity."""
    names = {MEGATRON: MEGATRON, MEGATRON_BALANCED: MEGATRON_BALANCED, COLOCATED: OPTIMUS}
    published = {(OPTIMUS, OVER_BALANCED): Band(*settings.PAPER_OVER_BALANCED[setting.devices])}
    if setting is settings.STRONG_SCALING[0]:
        published |= {(names[name], SECONDS): Band(*ends) for name, ends in settings.PAPER_SECONDS.items()}
    return published


def step_rows(place: str, steps: Steps, published: Mapping[tuple[str, str], Band] | None = None) -> Iterator[PaperRow]:
    """Seconds of every system, and the throughput of colocated plans over "Megatron-LM balanced"."""
    published, best = published or {}, steps.best.simulated.timeline
    for system, simulated in steps.systems.items():
        row = _row(place, steps.title, system, SECONDS, "seconds", seconds_figure(simulated.timeline))
        if system == OPTIMUS:
            row = _with_best(row, steps, seconds_figure(best))
        yield dataclasses.replace(row, published=published.get((system, SECONDS)))
    if OPTIMUS not in steps.systems:
        of_best = _row(place, steps.title, OPTIMUS, SECONDS, "seconds", None, seconds_figure(best))
        yield dataclasses.replace(of_best, best_plan=steps.best.words)
        return
    balanced, ours = (steps.systems[name].timeline for name in (MEGATRON_BALANCED, OPTIMUS))
    gain = _row(place, steps.title, OPTIMUS, OVER_BALANCED, "times", gain_figure(ours, balanced))
    gain = _with_best(gain, steps, gain_figure(best, balanced))
    yield dataclasses.replace(gain, published=published.get((OPTIMUS, OVER_BALANCED)))


def mean_row(all_steps: Sequence[Steps]) -> PaperRow:
    """The mean gain over "Megatron-LM balanced"."""
    figures = [
        [
            gain_figure(timeline, steps.systems[MEGATRON_BALANCED].timeline)
            for steps, timeline in (
                (steps, (steps.best.simulated if is_best else steps.systems[OPTIMUS]).timeline) for steps in all_steps
            )
        ]
        for is_best in (False, True)
    ]
    at_layout, best = map(_mean, figures)
    row = _row(MEAN, f"{len(all_steps)} settings", OPTIMUS, OVER_BALANCED, "times", at_layout, best)
    return dataclasses.replace(row, published=exactly(settings.PAPER_MEAN_OVER_BASELINES))


def _mean(figures: Sequence[Figure]) -> Figure:
    ranges = [figure.range for figure in figures if figure.range]
    least, most = (statistics.mean(range_[end] for range_ in ranges) for end in (0, 1))
    return Figure("simulated", exactly(statistics.mean(figure.value.most for figure in figures)), Band(least, most))


def small_rows(case: OptimusCase, plans: BestPlans, *, search: bool = True) -> Iterator[PaperRow]:
    """The comparison with Alpa and FSDP, whose layouts the text does not give: each has its best one."""
    systems = systems_of(case)
    named = {"Alpa": ALPA, "PyTorch FSDP": FSDP, OPTIMUS: COLOCATED}
    simulated = {name: systems[system](case) for name, system in named.items()}
    best = plans.best(case.problem_with(1), case.setting.title, search=search)
    steps = Steps(case, "ViT-3B + GPT-11B, 8 A100s", simulated, best)
    for name, each in simulated.items():
        row = _row(SMALL, steps.title, name, SECONDS, "seconds", seconds_figure(each.timeline))
        yield _with_best(row, steps, seconds_figure(best.simulated.timeline)) if name == OPTIMUS else row
    for name, published in (("Alpa", settings.PAPER_OVER_ALPA), ("PyTorch FSDP", settings.PAPER_OVER_FSDP)):
        over, ours = simulated[name].timeline, simulated[OPTIMUS].timeline
        row = _row(SMALL, steps.title, OPTIMUS, f"throughput over {name}", "times", gain_figure(ours, over))
        row = _with_best(row, steps, gain_figure(best.simulated.timeline, over))
        yield dataclasses.replace(row, published=exactly(published))


def bubble_rows(steps: Steps) -> Iterator[PaperRow]:
    """Idle shares of Megatron-LM's steps by cause, beside the paper's own task of another size."""
    for system in (MEGATRON, MEGATRON_BALANCED):
        timeline = steps.systems[system].timeline
        for cause, published in settings.PAPER_BUBBLES.items():
            figure = share_figure(timeline.idle[cause] / timeline.step, timeline.error_families)
            row = _row(BUBBLES, cause, system, "share of the step idle", "share", figure)
            assumed = f"ours: ViT-22B + GPT-175B, {steps.title}; the paper's own task is another, of 5.12 s"
            yield dataclasses.replace(row, published=exactly(published), assumptions=(assumed,))


def memory_row(steps: Steps) -> PaperRow:
    """By how much a device of the colocated plan needs more memory than in "Megatron-LM balanced"."""
    problem = steps.case.problem
    ours, balanced = (problem.memory_fraction(steps.systems[name].timeline) for name in (OPTIMUS, MEGATRON_BALANCED))
    figure = Figure("computed", exactly(ours / balanced - 1), None)
    title = f"{steps.case.setting.model}, {steps.case.setting.devices:,} GPUs"
    row = _row(MEMORY, title, OPTIMUS, "memory over Megatron-LM balanced", "share", figure)
    assumed = "each recomputes the least with which it fits, which levels the two"
    published = Band(0.0, settings.PAPER_MOST_MEMORY_OVERHEAD)
    return dataclasses.replace(row, published=published, assumptions=(*ASSUMED, assumed))


def scheduling_rows(case: OptimusCase, title: str) -> Iterator[PaperRow]:
    """The encoder's work in bubbles, coarse and fine, and the scheduler's time; 12 chunks, and one chunk."""
    for chunks in scheduling.STRONG_CHUNKS:
        plan = scheduling.colocated_plan(case.problem, case.setting, chunks)
        timeline = case.problem.simulate(plan)
        op_graph = scheduling.op_graph_of(case.problem, plan)
        kind = "1F1B" if chunks == 1 else f"{chunks} chunks"
        for name, order in (("coarse", coarse_colocated), ("coarse and fine", colocated)):
            use = bubble_use(order(op_graph))
            assert use is not None
            figure = share_figure(use.in_bubbles, timeline.error_families)
            row = _row(EFFICIENCY, f"{title}, {kind}", name, "share of the encoder's work in bubbles", "share", figure)
            is_stated = case.setting is settings.STRONG_SCALING[0] and name != "coarse"
            yield dataclasses.replace(row, published=exactly(settings.PAPER_FINE_SHARE) if is_stated else None)
        seconds = [scheduling.scheduler_seconds(op_graph) for _ in range(scheduling.SCHEDULER_RUNS)]
        measured = Figure("measured", exactly(statistics.median(seconds)), Band(min(seconds), max(seconds)))
        row = _row(SCHEDULER, f"{title}, {kind}", OPTIMUS, "processor seconds", "seconds", measured)
        is_stated = case.setting is settings.STRONG_SCALING[0]
        yield dataclasses.replace(row, published=exactly(settings.PAPER_SCHEDULER_SECONDS) if is_stated else None)


def _microbatches(setting: OptimusSetting) -> int:
    assert setting.ranks is not None
    return setting.batch // setting.ranks.dp // settings.MICROBATCH


def _with_best(row: PaperRow, steps: Steps, best: Figure) -> PaperRow:
    return dataclasses.replace(row, best=best, best_plan=steps.best.words)


def _row(
    place: str, title: str, system: str, quantity: str, unit: Unit, at_layout: Figure | None, best: Figure | None = None
) -> PaperRow:
    return PaperRow(
        paper=PAPER,
        place=place,
        row=title,
        system=system,
        quantity=quantity,
        unit=unit,
        at_layout=at_layout,
        best=best,
        assumptions=ASSUMED,
    )
