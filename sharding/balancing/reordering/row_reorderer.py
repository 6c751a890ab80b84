"""The order of a global batch's rows that makes a plan's step short.

These are DistTrain's reorderings (arXiv 2408.04275, section 6) and a search of our own, all with the simulator's costs.
Row i belongs to microbatch i // (n / m), and the rows of a microbatch go to the replicas of every stage in order. The
data pipeline orders the rows of a step by a `RowReorderer` (`data/packing/row_order.py`).
"""

import math
from collections.abc import Callable, Mapping

import numpy as np
from jaxtyping import Int

from sharding.balancing.reordering.inter_microbatch import IntervalFillingOrder
from sharding.balancing.reordering.intra_microbatch import balanced_groups
from sharding.balancing.reordering.local_search import search_orders
from sharding.balancing.reordering.replay import PipelineMicrobatchSeconds, ScheduleReplay, build_replay
from sharding.costs.batch_costs import BatchCosts, LoadsByModule
from sharding.costs.cost_model import CostModel
from sharding.costs.stages.plan_costs import plan_costs
from sharding.plans.resolved.resolved_plan import ResolvedPlan
from sharding.schedules.named.build import build_schedule

EVALUATIONS = 2048

RowPermutation = Int[np.ndarray, " n"]
"""Rows in the order in which a step takes them."""


class RowReorderer:
    """Reorders the rows of one global batch after another; deterministic.

    Policies:
        none: The rows in the given order.
        intra_microbatch: Equal work for every replica of the unit that has most of them (DistTrain's Algorithm 2).
        inter_microbatch: In every pipeline (see `replay.py`), an order of its microbatches that fills the intervals
            between the backwards of the first stage (Algorithm 3).
        both: `intra_microbatch`, then `inter_microbatch`.
        search: Equal work for every pipeline, the better of several orders in each, and then swaps of microbatches
            within and between pipelines. A step never takes longer than with the rows in the given order.

    All processes of a run must use the same order. NumPy's sums may differ in the last bit between kinds of processors,
    so where these differ let one process order for all.

    Attributes:
        policy: One of `REORDERING_POLICIES`.
        evaluations: For `search`: how often it may compute the step of a pipeline.
        resolved: The plan whose step is to be short.
    """

    def __init__(
        self,
        resolved: ResolvedPlan,
        costs: CostModel,
        policy: str = "search",
        evaluations: int = EVALUATIONS,
    ) -> None:
        if policy not in REORDERING_POLICIES:
            raise ValueError(f"there is no policy {policy!r}; choose from {', '.join(REORDERING_POLICIES)}")
        self.policy, self.evaluations = policy, evaluations
        self.resolved, self._costs = resolved, costs
        self._replays: dict[int, tuple[ScheduleReplay, IntervalFillingOrder]] = {}

    def row_order(self, rows: LoadsByModule) -> RowPermutation:
        """The order for rows with these loads.

        Raises:
            PlanError: The plan cannot divide so many rows.
        """
        return REORDERING_POLICIES[self.policy](self, rows)

    def replay_with_costs(
        self, rows: LoadsByModule
    ) -> tuple[ScheduleReplay, IntervalFillingOrder, PipelineMicrobatchSeconds]:
        """The plan's replay, which depends only on the number of rows, and seconds of the pipeline microbatches."""
        step_costs = plan_costs(self.resolved, BatchCosts(self.resolved.graph, self._costs, rows))
        count = _row_count(rows)
        if count not in self._replays:
            schedule = build_schedule(self.resolved, self.resolved.trained_stages)
            rows_per_microbatch = count // self.resolved.plan.microbatches
            replay = build_replay(self.resolved.devices, schedule, step_costs, rows_per_microbatch)
            self._replays[count] = replay, IntervalFillingOrder(replay)
        replay, interval_order = self._replays[count]
        return replay, interval_order, replay.pipeline_microbatch_seconds(step_costs)


def _keep_order(reorderer: RowReorderer, rows: LoadsByModule) -> RowPermutation:
    return np.arange(_row_count(rows))


def _reorder_within_microbatches(reorderer: RowReorderer, rows: LoadsByModule) -> RowPermutation:
    units, m = reorderer.resolved.plan.units, reorderer.resolved.plan.microbatches
    rows_per_microbatch = _row_count(rows) // m
    counts = [unit.replicas_of(module) for unit in units for module in unit.modules]
    replicas = math.lcm(*counts)
    if rows_per_microbatch % replicas:
        replicas = math.gcd(rows_per_microbatch, *counts)
    work = [
        module.forward_flops(rows[module.name]) / len(reorderer.resolved.plan.unit_of(module.name).devices)
        for module in reorderer.resolved.graph.modules
    ]
    groups = balanced_groups(np.sum(work, axis=0), replicas)  # [replicas, rows of a replica]
    return groups.reshape(replicas, m, -1).transpose(1, 0, 2).ravel()


def _reorder_microbatches(reorderer: RowReorderer, rows: LoadsByModule) -> RowPermutation:
    replay, interval_order, seconds = reorderer.replay_with_costs(rows)
    return _rows_of_pipeline_microbatches(replay, interval_order.orders(seconds), _row_count(rows))


def _reorder_within_then_between(reorderer: RowReorderer, rows: LoadsByModule) -> RowPermutation:
    within = _reorder_within_microbatches(reorderer, rows)
    return within[_reorder_microbatches(reorderer, {module: loads[within] for module, loads in rows.items()})]


def _search_order(reorderer: RowReorderer, rows: LoadsByModule) -> RowPermutation:
    replay, interval_order, pipeline_microbatch_seconds = reorderer.replay_with_costs(rows)
    given = np.arange(replay.pipelines * replay.microbatches).reshape(replay.pipelines, -1)  # [p, m]
    ascending = balanced_groups(pipeline_microbatch_seconds[: len(replay.compute_rows)].sum(axis=0), replay.pipelines)
    positions = interval_order.orders(pipeline_microbatch_seconds[:, ascending.ravel()]) - given[:, :1]
    interval_filling = np.take_along_axis(ascending, positions, axis=1)
    candidates = np.concatenate([ascending, interval_filling, given])
    seconds = replay.step_seconds(pipeline_microbatch_seconds, candidates).reshape(3, -1)  # [3, p]
    initial = np.where((seconds[0] < seconds[1])[:, None], ascending, interval_filling)
    best = search_orders(replay, pipeline_microbatch_seconds, initial, reorderer.evaluations - seconds.size)
    if replay.step_seconds(pipeline_microbatch_seconds, best).max() > seconds[2].max():
        best = given
    return _rows_of_pipeline_microbatches(replay, best, _row_count(rows))


REORDERING_POLICIES: Mapping[str, Callable[[RowReorderer, LoadsByModule], RowPermutation]] = {
    "none": _keep_order,
    "intra_microbatch": _reorder_within_microbatches,
    "inter_microbatch": _reorder_microbatches,
    "both": _reorder_within_then_between,
    "search": _search_order,
}


def _row_count(rows: LoadsByModule) -> int:
    return len(next(iter(rows.values())))


def _rows_of_pipeline_microbatches(
    replay: ScheduleReplay, orders: Int[np.ndarray, "p m"], count: int
) -> RowPermutation:
    """The rows of pipeline microbatches in these orders; the rows of one stay together, in their order."""
    shape = (replay.microbatches, replay.pipelines, -1)
    rows_by_pipeline_microbatch = (
        np.arange(count).reshape(shape).transpose(1, 0, 2).reshape(orders.size, -1)
    )  # [c, rows]
    return rows_by_pipeline_microbatch[orders].transpose(1, 0, 2).ravel()
