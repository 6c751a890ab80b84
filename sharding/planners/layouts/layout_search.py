"""The best integer layout of disjoint modules by DistTrain's objective (arXiv 2408.04275, equations 1 and 2), exactly.

    seconds = sum_i fill_i + (microbatches - 1) * max_i slowest_stage_i

Combinations of a data-parallel and a tensor-parallel size of the backbone are taken in the order of their relaxed
bounds, until a bound is no better than the best layout known (`backbone_search.py`).
"""

from collections.abc import Mapping

import numpy as np

from sharding.planners.layouts.backbone_search import TOLERANCE, BackboneSearch
from sharding.planners.layouts.disjoint_layout import DisjointLayout
from sharding.planners.layouts.relaxation import RelaxedOptima, solve_relaxations
from sharding.planners.problem import PlanningProblem
from sharding.planners.tables.pareto_front import ParetoFront


def search_layouts(
    problem: PlanningProblem,
    keep: int = 1,
    max_devices: Mapping[str, int] | None = None,
    extra: int = 0,
    chunks: int | None = None,
) -> list[DisjointLayout]:
    """The best layouts with different (dp, tp, chunks) of the backbone, best first; none if nothing fits.

    Args:
        problem: The problem.
        keep: How many layouts to return.
        max_devices: The most devices of each module; by default all devices.
        extra: Microbatches in flight beyond the schedule's limits for which memory is left (`most_extra_in_flight`).
        chunks: Virtual stages per pipeline rank of the backbone; by default, any that the problem allows.
    """
    best: list[DisjointLayout] = []
    known: dict[tuple, ParetoFront] = {}
    for bound, sizes in _backbone_sizes(problem, solve_relaxations(problem, chunks)):
        target = best[keep - 1].seconds if len(best) >= keep else np.inf
        if bound > target * (1 + TOLERANCE):
            break
        layout = BackboneSearch(problem, *sizes, max_devices or {}, extra, known).best_layout(bound, target)
        if layout:
            best = sorted([*best, layout], key=lambda layout: (layout.seconds, layout.devices))[:keep]
    return best


def similar_layouts(
    problem: PlanningProblem,
    layout: DisjointLayout,
    slack: float,
    max_devices: Mapping[str, int] | None = None,
    extra: int = 0,
) -> list[DisjointLayout]:
    """Layouts with the same (dp, tp, chunks) of the backbone, best first: at most `MAX_SIMILAR`.

    Hardly any takes longer than another on as many or fewer devices; of more layouts than that, the ones
    with the fewest device-seconds are kept.

    Args:
        problem: The problem.
        layout: One that `search_layouts` finds with `max_devices` and `extra`.
        slack: Share by which they may take longer.
        max_devices: The most devices of each module; by default all devices.
        extra: As in `search_layouts`.
    """
    table = problem.module_tables[problem.graph.backbone.name]
    choice = layout.choices[table.module.name]
    sizes = choice.dp, int(table.tp[choice.candidate]), int(table.chunks[choice.candidate])
    return BackboneSearch(problem, *sizes, max_devices or {}, extra, {}).layouts_within(layout.seconds * (1 + slack))


def _backbone_sizes(problem: PlanningProblem, optima: RelaxedOptima) -> list[tuple[float, tuple[int, int, int]]]:
    """Pairs (bound, (dp, tp, chunks) of the backbone) with the best relaxed bound of each, best first."""
    column = problem.graph.names.index(problem.graph.backbone.name)
    keys = np.stack([optima.dp, optima.tp[:, column], optima.chunks], axis=1)
    fits = np.isfinite(optima.seconds)
    if not fits.any():
        return []
    sizes, group_of = np.unique(keys[fits], axis=0, return_inverse=True)
    bounds = np.full(len(sizes), np.inf)
    np.minimum.at(bounds, group_of.ravel(), optima.seconds[fits])
    ordered = []
    for index in np.argsort(bounds, kind="stable"):
        dp, tp, chunks = map(int, sizes[index])
        ordered.append((float(bounds[index]), (dp, tp, chunks)))
    return ordered
