"""The order of a global batch's rows that makes a plan's step short.

These are DistTrain's reorderings (arXiv 2408.04275, section 6) and a search of our own, all with the simulator's costs.
Row i belongs to microbatch i // (n / m), and the rows of a microbatch go to the replicas of every stage in order. The
data pipeline orders the rows of a step by a `RowReorderer` (`data/packing/row_order.py`).
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import Int

from sharding.balancing.reordering.intra_microbatch import balanced_groups, balanced_microbatches, balanced_replicas
from sharding.balancing.reordering.local_search import search_orders
from sharding.balancing.reordering.replay import PipelineMicrobatchSeconds, ScheduleReplay, has_replay
from sharding.balancing.reordering.step_replays import CostedOrder, OrderedMicrobatches, RowPermutation, StepReplays
from sharding.costs.batch_costs import BatchCosts, LoadsByModule, replica_loads
from sharding.costs.cost_model import CostModel
from sharding.costs.own_rows import fullest_row
from sharding.costs.stages.plan_costs import plan_costs
from sharding.plans.resolved.resolved_plan import ResolvedPlan
from sharding.schedules.named.build import build_schedule
from sharding.schedules.ops import Schedule
from sharding.simulation.simulator import simulate

EVALUATIONS = 2048
"""Most steps of a pipeline that the search computes."""
NODE_EVALUATIONS = 6_000_000
"""Most nodes whose ends the search computes, in all these steps together; it bounds its time."""
NODE_EVALUATIONS_PER_PIPELINE = 2_400_000
"""As many for each pipeline: swaps within a pipeline soon gain nothing more, swaps between many go on to."""

FitsCapacities = Callable[[RowPermutation], bool]
"""Whether the items of every microbatch can be dealt, if rows come in this order."""


class RowReorderer:
    """Reorders the rows of one global batch after another; deterministic, and safe to share between threads.

    Policies:
        none: The rows in the given order.
        intra_microbatch: Equal work for every replica of the unit that has most of them (DistTrain's Algorithm 2).
            Where the plan deals items over the rows of a phase, equal work for every microbatch.
        inter_microbatch: In every pipeline (see `replay.py`), an order of its microbatches that fills the intervals
            between the backwards of the first stage (Algorithm 3).
        both: The better of `intra_microbatch` with `inter_microbatch` after it, and of either alone.
        search: The better of equal work for every pipeline and of the order of `both`, and then swaps of microbatches
            within and between pipelines.

    By the costs, a step never takes longer than with the rows in the given order, which is kept where a policy's own is
    not shorter. An order in which the items of some microbatch fit no capacity is not used; whole microbatches that
    change places keep what they hold.

    All processes of a run must use the same order. NumPy's sums may differ in the last bit between kinds of processors,
    so where these differ let one process order for all.

    Attributes:
        policy: One of `REORDERING_POLICIES`.
        evaluations: For `search`: how often it may compute the step of a pipeline, in whole rounds. Large pipelines are
            computed less often, so that all these steps together have at most about `NODE_EVALUATIONS` nodes.
        resolved: The plan whose step is to be short.
        costs: The cost model.
        rendezvous: Whether a hop occupies the devices of both its ends, as between processes.
    """

    def __init__(
        self,
        resolved: ResolvedPlan,
        costs: CostModel,
        policy: str = "search",
        evaluations: int = EVALUATIONS,
        rendezvous: bool = False,
    ) -> None:
        if policy not in REORDERING_POLICIES:
            raise ValueError(f"there is no policy {policy!r}; choose from {', '.join(REORDERING_POLICIES)}")
        self.policy, self.evaluations = policy, evaluations
        self.resolved, self.costs, self.rendezvous = resolved, costs, rendezvous
        self._replays: dict[int, StepReplays] = {}

    def row_order(self, rows: LoadsByModule, fits: FitsCapacities | None = None) -> RowPermutation:
        """The order for rows with these loads.

        Args:
            rows: The loads of the rows.
            fits: Tells which orders fit the capacities of the plan's phases; by default by the loads, as if all items
                were of equal size.

        Raises:
            PlanError: The plan cannot divide so many rows.
            ScheduleError: The policy orders microbatches, and the microbatches of a unit run in lockstep.
        """
        return REORDERING_POLICIES[self.policy](self, rows, fits or functools.partial(self._fits_by_loads, rows))

    @functools.cached_property
    def schedule(self) -> Schedule:
        """The plan's schedule, which does not depend on rows."""
        return build_schedule(self.resolved, self.resolved.trained_stages)

    def costed(self, rows: LoadsByModule, order: RowPermutation) -> CostedOrder:
        """Rows in an order, with the costs of the step."""
        reordered = {module: loads[order] for module, loads in rows.items()}
        return CostedOrder(order, plan_costs(self.resolved, BatchCosts(self.resolved.graph, self.costs, reordered)))

    def given(self, rows: LoadsByModule) -> CostedOrder:
        """The rows in the given order; raises PlanError if the plan cannot divide them."""
        return self.costed(rows, np.arange(_row_count(rows)))

    def divisions(self, given: CostedOrder, rows: LoadsByModule, fits: FitsCapacities) -> list[CostedOrder]:
        """The given order, and, if it is another and fits, one with equal work (`intra_microbatch`)."""
        order = self._equal_work(rows)
        is_used = not np.array_equal(order, given.order) and fits(order)
        return [given, self.costed(rows, order)] if is_used else [given]

    def replays(self, costed: CostedOrder) -> StepReplays:
        """The plan's replays, which depend only on the number of rows; raises ScheduleError if it has none."""
        count = len(costed.order)
        if count not in self._replays:
            rows_per_microbatch = count // self.resolved.plan.microbatches
            self._replays[count] = StepReplays.build(
                self.resolved, self.schedule, costed.costs, rows_per_microbatch, self.rendezvous
            )
        return self._replays[count]

    def step_seconds(self, costed: CostedOrder) -> float:
        """Seconds of the simulated step."""
        if not has_replay(self.schedule):
            return float(simulate(self.resolved, self.schedule, costed.costs, self.rendezvous).step)
        replays = self.replays(costed)
        return float(replays.step_seconds(costed.costs, replays.exact.given_orders[None])[0])

    def _equal_work(self, rows: LoadsByModule) -> RowPermutation:
        plan = self.resolved.plan
        by_module = [
            module.forward_flops(rows[module.name]) / len(plan.unit_of(module.name).devices)
            for module in self.resolved.graph.modules
        ]
        work = np.sum(by_module, axis=0)
        if self.resolved.stages.exchanges:
            return balanced_microbatches(work, plan.microbatches)
        rows_per_microbatch = len(work) // plan.microbatches
        counts = [unit.replicas_of(module) for unit in plan.units for module in unit.modules]
        replicas = math.lcm(*counts)
        if rows_per_microbatch % replicas:
            replicas = math.gcd(rows_per_microbatch, *counts)
        return balanced_replicas(work, plan.microbatches, replicas)

    def _fits_by_loads(self, rows: LoadsByModule, order: RowPermutation) -> bool:
        plan, graph = self.resolved.plan, self.resolved.graph
        for unit in plan.units:
            if unit.capacities:
                (module,) = unit.modules
                microbatches = replica_loads(rows[module][order], plan.microbatches, 1)[:, 0]
                fullest = fullest_row(microbatches, unit.phase_rows, graph[module])
                if fullest.max() > unit.capacities[-1] * (1 + 1e-9):
                    return False
        return True


def _keep_order(reorderer: RowReorderer, rows: LoadsByModule, fits: FitsCapacities) -> RowPermutation:
    return np.arange(_row_count(rows))


def _reorder_within_microbatches(reorderer: RowReorderer, rows: LoadsByModule, fits: FitsCapacities) -> RowPermutation:
    return min(reorderer.divisions(reorderer.given(rows), rows, fits), key=reorderer.step_seconds).order


def _reorder_microbatches(reorderer: RowReorderer, rows: LoadsByModule, fits: FitsCapacities) -> RowPermutation:
    return _fill_intervals(reorderer, [reorderer.given(rows)])


def _reorder_within_then_between(reorderer: RowReorderer, rows: LoadsByModule, fits: FitsCapacities) -> RowPermutation:
    return _fill_intervals(reorderer, reorderer.divisions(reorderer.given(rows), rows, fits))


def _fill_intervals(reorderer: RowReorderer, divisions: Sequence[CostedOrder]) -> RowPermutation:
    """The best of these orders of rows, with their microbatches as they are or in the order of Algorithm 3."""
    replays = reorderer.replays(divisions[0])
    filled = replays.fill_intervals(
        [replays.bound.pipeline_microbatch_seconds(division.costs) for division in divisions]
    )
    given = [OrderedMicrobatches(division, replays.bound.given_orders) for division in divisions]
    return replays.shortest([*given, *map(OrderedMicrobatches, divisions, filled)])


def _search_order(reorderer: RowReorderer, rows: LoadsByModule, fits: FitsCapacities) -> RowPermutation:
    given = reorderer.given(rows)
    replays = reorderer.replays(given)
    bound = replays.bound
    swaps_rows = bound.pipelines > 1 and bound.given_orders.size == len(given.order)  # by swapping microbatches
    divisions = [given] if swaps_rows else reorderer.divisions(given, rows, fits)
    tables = [bound.pipeline_microbatch_seconds(division.costs) for division in divisions]
    best, start = _best_start(replays, tables)
    evaluations = evaluations_within_bounds(bound, reorderer.evaluations)
    searched = search_orders(bound, tables[best], start, evaluations - 2 * len(tables) * bound.pipelines)
    candidates = [(given, bound.given_orders), (divisions[best], start), (divisions[best], searched)]
    return replays.shortest([OrderedMicrobatches(*candidate) for candidate in candidates])


def evaluations_within_bounds(replay: ScheduleReplay, most: int) -> int:
    """How many steps of a pipeline a search computes: at most so many, and less where a pipeline has many nodes."""
    nodes = min(NODE_EVALUATIONS, NODE_EVALUATIONS_PER_PIPELINE * replay.pipelines)
    return min(most, nodes // replay.nodes.graph.count)


def _best_start(
    replays: StepReplays, tables: Sequence[PipelineMicrobatchSeconds]
) -> tuple[int, Int[np.ndarray, "p m"]]:
    """The division of rows, of which these are the seconds, with the shortest step, and the order of its microbatches.

    The pipelines of the first division, the given one, get pipeline microbatches with equal work; of the other one they
    have rows with equal work. Each pipeline takes its microbatches so, or in the order of Algorithm 3.
    """
    bound, given = replays.bound, replays.bound.given_orders
    groups = [balanced_groups(bound.largest_shares(tables[0]), len(given)) if len(given) > 1 else given]
    groups += [given] * (len(tables) - 1)
    positions = replays.fill_intervals([table[:, group.ravel()] for table, group in zip(tables, groups, strict=True)])
    starts = []
    for table, group, position in zip(tables, groups, positions, strict=True):
        filled = np.take_along_axis(group, position - given[:, :1], axis=1)
        one, other = bound.step_seconds(table, np.concatenate([group, filled])).reshape(2, -1)  # [p] each
        orders = np.where((other < one)[:, None], filled, group)
        starts.append((float(np.minimum(one, other).max()), orders))
    best = min(range(len(starts)), key=lambda number: starts[number][0])
    return best, starts[best][1]


REORDERING_POLICIES: Mapping[str, Callable[[RowReorderer, LoadsByModule, FitsCapacities], RowPermutation]] = {
    "none": _keep_order,
    "intra_microbatch": _reorder_within_microbatches,
    "inter_microbatch": _reorder_microbatches,
    "both": _reorder_within_then_between,
    "search": _search_order,
}


def _row_count(rows: LoadsByModule) -> int:
    return len(next(iter(rows.values())))
