"""Every module on devices of its own: DistTrain's disaggregated orchestration, and its strawman by FLOPs.

The policy `disaggregated` (arXiv 2408.04275, section 5) chooses tensor-parallel sizes that divide a module and a node,
and data-parallel sizes of the backbone that divide the batch, with one row per replica and microbatch; encoders and
generators have any number of replicas, over which the items of a microbatch are dealt (`UnitPlan.phase_rows`). Modules
that fit a device are replicated (tp 1) where that is better. The policy `ratio` (section 5.1) does the same within a
number of devices for each module in proportion to its FLOPs.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from sharding.costs.cost_model import useful_flops
from sharding.planners.infeasible import infeasible_error
from sharding.planners.layouts.disjoint_layout import DisjointLayout
from sharding.planners.layouts.layout_search import search_layouts, similar_layouts
from sharding.planners.layouts.schedule_fields import scheduled_plan
from sharding.planners.layouts.step_estimate import StepEstimate
from sharding.planners.problem import STEP_SLACK, PlanningProblem
from sharding.plans.plan import Plan
from sharding.plans.plan_error import PlanError
from sharding.plans.resolved.trained_parts import RequiredGradients

_COUNT, _COUNT_BY_FLOPS = 5, 3  # of the best sizes of the backbone
_LESS_MEMORY = (0.92, 0.8, 0.65)  # shares of the memory for which spare plans are searched
_ESTIMATED = 2  # times as many sizes are estimated
_SIMILAR = 0.1  # share by which layouts that are estimated may take longer by the objective
_SLACKS = (0.0, STEP_SLACK / 4, STEP_SLACK / 2, STEP_SLACK)  # within which device-seconds count
_FIRST_ESTIMATES = 8  # layouts of a size of the backbone, before more of it are estimated
_BELOW = 0.03  # share by which an estimate may be below the objective, as drawn rows are not mean rows
_UNSURE = 0.05  # share by which a layout may take longer than the shortest by an estimate that is some percent off
_WORTHWHILE = STEP_SLACK / 4  # share by which more chunks have to shorten a step
_SIMULATED_OPS = 25_000  # of all plans together; the first plan is simulated however many ops it has
_FIRST_PLANS, _OPS_OF_FIRST = 3, 100_000  # that are simulated if they have no more ops together
_REPLICAS = 1024  # of which the simulation of an op takes a few times as long as of one

ROOMY = 2
"""Microbatches in flight beyond the schedule's limits: with so many, stages hardly wait for each other."""


def plans(problem: PlanningProblem) -> list[Plan]:
    """Returns the best layouts by the estimate, among the best by DistTrain's objective."""
    return _best_plans(problem, _COUNT, problem.chunk_choices)


def plans_of_best_size(problem: PlanningProblem) -> list[Plan]:
    """Returns the plans of the best size of the backbone alone, in a fraction of the time of `plans`.

    Where hops occupy both ends, it has the fewest chunks, as more of them hardly ever gain anything there.
    """
    choices = sorted(problem.chunk_choices)
    return _best_plans(problem, 1, choices[:1] if problem.rendezvous else choices)


def _best_plans(problem: PlanningProblem, count: int, chunk_choices: Sequence[int]) -> list[Plan]:
    plans = _plans_within(problem, count, {}, chunk_choices)
    if not plans:
        raise infeasible_error(problem, _fits)
    return plans


def spare_plans(problem: PlanningProblem) -> Iterator[Plan]:
    """Plans of layouts that leave memory free, for rows that need more of it than the mean rows of the tables."""
    for share in _LESS_MEMORY:
        cluster = dataclasses.replace(problem.cluster, memory=share * problem.cluster.memory)
        yield from _plans_within(dataclasses.replace(problem, cluster=cluster), _COUNT, {}, problem.chunk_choices)


def _fits(problem: PlanningProblem) -> bool:
    """Whether any plan fits when it is simulated."""
    plans = itertools.chain(_plans_within(problem, _COUNT, {}, problem.chunk_choices), spare_plans(problem))
    return any(problem.memory_fraction(problem.simulate(plan)) <= 1 for plan in plans)


def flops_proportional_plans(problem: PlanningProblem) -> list[Plan]:
    """The best layouts in which no module has more devices than its share of the FLOPs."""
    shares = flops_shares(problem)
    max_devices = {name: max(1, int(share * problem.devices)) for name, share in shares.items()}
    plans = _plans_within(problem, _COUNT_BY_FLOPS, max_devices, problem.chunk_choices)
    if not plans:
        if not search_layouts(problem):
            raise infeasible_error(problem, _fits)
        counts = ", ".join(f"{name} {count}" for name, count in max_devices.items())
        raise PlanError(f"by their FLOPs the units get {counts} devices, on which they do not all fit")
    return plans


def _plans_within(
    problem: PlanningProblem, count: int, max_devices: Mapping[str, int], chunk_choices: Sequence[int]
) -> list[Plan]:
    """Plans worth simulating, on at most so many devices of each module; none if nothing fits.

    The best sizes of the backbone are searched twice: with memory for more microbatches in flight than the schedule
    needs, where stages hardly wait for each other, and, for the shortest of all, without. Each number of chunks is
    searched by itself, because objective and estimate take more account of the fill that chunks shorten than of their
    waits; of three or more only the best layout is taken.

    Where hops occupy both ends, more microbatches in flight gain little, so that all of the best sizes are searched
    without too. Chunks hardly ever gain anything: only the best layout with them is taken, and none where the estimate,
    which knows the waits there, is far longer than with another number.
    """
    estimate = StepEstimate(problem)
    half = -(-count // 2)
    by_chunks: list[list[DisjointLayout]] = []  # by chunks, ascending
    table = problem.module_tables[problem.graph.backbone.name]
    choices: list[int] = sorted(set(chunk_choices) & set(table.chunks.tolist()))
    while choices:
        chunks = choices.pop(0)
        has_several = chunks == 1 or (chunks == 2 and not problem.rendezvous)
        sizes = half if has_several else 1
        known = [estimate.seconds(same_chunks[0]) for same_chunks in by_chunks if problem.rendezvous]
        shortest = min(known, default=np.inf)
        layouts = _layouts_worth_simulating(estimate, problem, sizes, max_devices, ROOMY, chunks, shortest)
        if has_several or not layouts:
            tight = 1 if layouts and not problem.rendezvous else sizes
            layouts += _layouts_worth_simulating(estimate, problem, tight, max_devices, 0, chunks)
        if not layouts and chunks == 1:
            break  # with chunks, more microbatches are in flight
        if layouts:
            layouts.sort(key=estimate.seconds)
            by_chunks.append(layouts if has_several else layouts[:1])
            choices = _useful_chunks(problem, estimate, choices, chunks, [same_chunks[0] for same_chunks in by_chunks])
    if problem.rendezvous and by_chunks:
        limit = min(estimate.seconds(same_chunks[0]) for same_chunks in by_chunks) * (1 + _UNSURE)
        by_chunks = [same_chunks for same_chunks in by_chunks if estimate.seconds(same_chunks[0]) <= limit]
    over_best = [
        (estimate.seconds(candidate) / estimate.seconds(same_chunks[0]), candidate)
        for same_chunks in by_chunks
        for candidate in same_chunks
    ]
    chosen: list[DisjointLayout] = []
    ops = 0
    for _, layout in sorted(over_best, key=lambda entry: entry[0]):
        more = _op_count(problem, layout)
        most = _OPS_OF_FIRST if len(chosen) < _FIRST_PLANS else _SIMULATED_OPS
        if layout not in chosen and (not chosen or ops + more <= most):
            chosen.append(layout)
            ops += more
    return [scheduled_plan(problem, layout) for layout in chosen]


def _useful_chunks(
    problem: PlanningProblem, estimate: StepEstimate, choices: list[int], chunks: int, fastest: list[DisjointLayout]
) -> list[int]:
    """The numbers of chunks that may shorten the step of the latest layout by `_WORTHWHILE`.

    With v chunks filling and draining the pipeline takes 1 / v of the seconds. Where chunks did not shorten the
    simulated step, more of them do not: ranks wait for a generator, or for each other in the shorter ops.

    Args:
        problem: The problem.
        estimate: Estimates the steps of layouts.
        choices: Numbers of chunks, all above `chunks`.
        chunks: Number of chunks of the latest layout.
        fastest: The layout with the shortest estimate for each number of chunks so far.
    """
    fill, worthwhile = estimate.chunk_gain(fastest[-1]), _WORTHWHILE * estimate.seconds(fastest[-1])
    useful = [more for more in choices if fill * (1 - chunks / more) >= worthwhile]
    if problem.rendezvous and len(fastest) > 1:  # where estimates of chunks are too short, if they are wrong
        before, latest = map(estimate.seconds, fastest[-2:])
        if latest > before * (1 - _WORTHWHILE):
            return []
    if useful and len(fastest) > 1:
        before, latest = (problem.simulate(scheduled_plan(problem, layout)).step for layout in fastest[-2:])
        return useful if latest <= before * (1 - _WORTHWHILE) else []
    return useful


def _layouts_worth_simulating(
    estimate: StepEstimate,
    problem: PlanningProblem,
    count: int,
    max_devices: Mapping[str, int],
    extra: int,
    chunks: int,
    shortest: float = np.inf,
) -> list[DisjointLayout]:
    """The best layouts by an estimate that sees more than the objective by which they are searched.

    For every layout that the search finds, layouts with the same sizes of the backbone are estimated: a few first, and
    all where these come near the shortest. Of each of the `count` best sizes the layout with the shortest step is
    taken, and the ones about as short with the fewest device-seconds. Sizes that are far from `shortest`, which some
    other layout takes, may be left out.
    """
    groups: list[_EstimatedLayouts] = []
    for layout in search_layouts(problem, _ESTIMATED * count, max_devices, extra, chunks):
        if layout.seconds * (1 - _BELOW) > shortest * (1 + _UNSURE):
            break
        groups.append(_EstimatedLayouts(estimate, similar_layouts(problem, layout, _SIMILAR, max_devices, extra)))
        groups[-1].estimate_first(_FIRST_ESTIMATES)
        shortest = min(shortest, groups[-1].shortest)
    groups = [group for group in groups if group.shortest <= shortest * (1 + 2 * _UNSURE)]
    for group in groups:
        group.estimate_first(len(group.layouts))
    groups.sort(key=lambda group: group.shortest)
    near = [group for group in groups[:count] if group.shortest <= groups[0].shortest * (1 + _UNSURE)]
    return [group.economical(slack) for group in near for slack in _SLACKS]


class _EstimatedLayouts:
    """Layouts in the order of the objective, and estimates of the first ones.

    Attributes:
        layouts: The layouts.
        shortest: The shortest estimate.
    """

    def __init__(self, estimate: StepEstimate, layouts: Sequence[DisjointLayout]) -> None:
        self.layouts, self.shortest = layouts, np.inf
        self._estimate = estimate
        self._seconds: list[float] = []

    def estimate_first(self, count: int) -> None:
        """Estimates so many layouts, up to the first whose objective is too long to be among the shortest."""
        for layout in self.layouts[len(self._seconds) : count]:
            if layout.seconds * (1 - _BELOW) > self.shortest * (1 + STEP_SLACK):
                break
            self._seconds.append(self._estimate.seconds(layout))
            self.shortest = min(self.shortest, self._seconds[-1])

    def economical(self, slack: float) -> DisjointLayout:
        """The layout with the fewest device-seconds, among the ones that take longer by `slack` at most."""
        limit = self.shortest * (1 + slack) * (1 + 1e-9)
        short = [
            (layout.devices * seconds, number)
            for number, (layout, seconds) in enumerate(zip(self.layouts, self._seconds, strict=False))
            if seconds <= limit
        ]
        return self.layouts[min(short)[1]]


def _op_count(problem: PlanningProblem, layout: DisjointLayout) -> int:
    """Number of forwards and backwards of a step, each once for every `_REPLICAS` replicas."""
    tables = problem.module_tables
    stages = sum(
        len(tables[name].layers[choice.candidate]) * -(-choice.dp // _REPLICAS)
        for name, choice in layout.choices.items()
    )
    return 2 * layout.microbatches * stages


def flops_shares(problem: PlanningProblem) -> dict[str, float]:
    """Every module's share of the useful FLOPs of a step."""
    required = RequiredGradients(problem.graph, problem.trained_parts)
    flops = {}
    for module in problem.graph.modules:
        load = problem.data.mean_load(module.name)
        layers = required.of_layers(module.name, 0, module.layer_count)
        flops[module.name] = sum(
            count * float(useful_flops(layer, load, gradients)) for layer, count, gradients in layers
        )
    total = sum(flops.values())
    return {name: module_flops / total for name, module_flops in flops.items()}
