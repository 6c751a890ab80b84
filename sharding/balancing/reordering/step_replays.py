"""The replays by which the orders of one plan's microbatches are compared: an exact one, and one to search with."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from sharding.balancing.reordering.inter_microbatch import IntervalFillingOrder
from sharding.balancing.reordering.replay import ScheduleReplay, build_joined_replay, build_replay
from sharding.costs.step_costs import StepCosts
from sharding.plans.resolved.resolved_plan import ResolvedPlan
from sharding.schedules.ops import Schedule

RowPermutation = Int[np.ndarray, " n"]
"""Rows in the order in which a step takes them."""


@dataclasses.dataclass(frozen=True, eq=False)
class CostedOrder:
    """An order of a step's rows.

    Attributes:
        order: The rows in this order.
        costs: The costs of the step that takes them so.
    """

    order: RowPermutation
    costs: StepCosts


class OrderedMicrobatches(NamedTuple):
    """An order of rows of which pipelines take the pipeline microbatches in another order.

    Attributes:
        rows: The order of rows.
        orders: The pipeline microbatches of every pipeline, in order.
    """

    rows: CostedOrder
    orders: Int[np.ndarray, "p m"]


@dataclasses.dataclass(frozen=True, eq=False)
class StepReplays:
    """The replays of a plan's step.

    Attributes:
        exact: The replay whose seconds are the simulator's.
        bound: The replay to search with: the same, or, where a step is one pipeline, the joined one.
        interval_order: Algorithm 3, by `bound` with hops that occupy no devices.
    """

    exact: ScheduleReplay
    bound: ScheduleReplay
    interval_order: IntervalFillingOrder

    @classmethod
    def build(
        cls, resolved: ResolvedPlan, schedule: Schedule, costs: StepCosts, rows: int, rendezvous: bool
    ) -> "StepReplays":
        """Builds the replays of a plan.

        Args:
            resolved: The plan.
            schedule: Its schedule.
            costs: The costs of a step; only what does not depend on rows is taken of them.
            rows: Rows of a microbatch.
            rendezvous: Whether a hop occupies the devices of both its ends.

        Raises:
            ScheduleError: Microbatches of the schedule cannot be ordered.
        """
        exact = build_replay(resolved.devices, schedule, costs, rows, rendezvous)

        def build_bound(occupies_ends: bool) -> ScheduleReplay:
            if exact.pipelines == 1:
                return build_joined_replay(resolved.devices, schedule, costs, occupies_ends)
            if occupies_ends == rendezvous:
                return exact
            return build_replay(resolved.devices, schedule, costs, rows, occupies_ends)

        return cls(exact, build_bound(rendezvous), IntervalFillingOrder(build_bound(occupies_ends=False)))

    def step_seconds(self, costs: StepCosts, orders: Int[np.ndarray, "k p m"]) -> Float[np.ndarray, " k"]:
        """The simulator's seconds of a step whose pipelines take their microbatches in each of these orders."""
        count, _, m = orders.shape
        seconds = self.exact.step_seconds(self.exact.pipeline_microbatch_seconds(costs), orders.reshape(-1, m))
        return seconds.reshape(count, -1).max(axis=1)

    def fill_intervals(self, tables: Sequence[Float[np.ndarray, "r c"]]) -> Int[np.ndarray, "k p m"]:
        """The orders of Algorithm 3 for several steps, given their seconds in `bound`."""
        orders = self.interval_order.orders(np.concatenate(tables, axis=1)).reshape(
            len(tables), self.bound.pipelines, -1
        )
        return orders - self.bound.given_orders.size * np.arange(len(tables))[:, None, None]

    def shortest(self, candidates: Sequence[OrderedMicrobatches]) -> RowPermutation:
        """The rows in the order of the candidate whose step is shortest; of equal ones the first."""
        seconds = np.zeros(len(candidates))
        for rows in dict.fromkeys(candidate.rows for candidate in candidates):
            same_rows = [number for number, candidate in enumerate(candidates) if candidate.rows is rows]
            orders = np.stack([candidates[number].orders for number in same_rows])
            seconds[same_rows] = self.step_seconds(rows.costs, orders)
        best = candidates[int(seconds.argmin())]
        return best.rows.order[self._rows_in(best.orders, len(best.rows.order))]

    def _rows_in(self, orders: Int[np.ndarray, "p m"], count: int) -> RowPermutation:
        """The rows of pipeline microbatches in these orders; the rows of one stay together, in their order."""
        pipelines, m = orders.shape
        by_pipeline = np.arange(count).reshape(m, pipelines, -1).transpose(1, 0, 2)
        of_pipeline_microbatch = by_pipeline.reshape(orders.size, -1)  # [c, rows]
        return of_pipeline_microbatch[orders].transpose(1, 0, 2).ravel()
