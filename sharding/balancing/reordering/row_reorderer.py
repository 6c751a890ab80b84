"""The order of a global batch's rows that makes a plan's step short; rows move, none is lost.

DistTrain's reordering (arXiv 2408.04275, section 6) and a search of our own, all over the simulator's costs. Row i
belongs to microbatch i // (n / m), and a microbatch's rows go to the instances of every stage in order.
"""

import math
from collections.abc import Callable, Mapping

import numpy as np
from jaxtyping import Int

from sharding.balancing.reordering.inter_microbatch import IntervalFillingOrder
from sharding.balancing.reordering.intra_microbatch import balanced_groups
from sharding.balancing.reordering.local_search import search_orders
from sharding.balancing.reordering.replay import CellSeconds, ScheduleReplay, build_replay
from sharding.costs.cost_model import CostModel
from sharding.costs.plan_costs import LoadsByModule, plan_costs
from sharding.plans.device_groups import replica_devices
from sharding.plans.plan import Plan
from sharding.plans.trained_parts import trained_stages
from sharding.schedules.build import build_schedule
from sharding.specs.modules import ModuleGraph

EVALUATIONS = 2048

Order = Int[np.ndarray, " n"]
"""Rows in the order in which a step takes them."""


class RowReorderer:
    """Arranges the rows of one global batch after another; deterministic.

    Policies:
        none: The rows as they come.
        instances: Equal work for every instance of the unit that has most (DistTrain's Algorithm 2).
        microbatches: In every pipeline, an order of its microbatches that fills the intervals between the first
            stage's backwards (Algorithm 3). What pipelines are says `replay`.
        both: The one, then the other.
        search: Equal work for every pipeline, the better of several orders in each, and then exchanges of microbatches
            inside of and between pipelines. A step never takes longer than with the rows as they come.

    Every process of a run must order alike: NumPy's sums may differ in the last bit from one kind of processor to
    another, so let one of them order for all where they are not of one kind.

    Attributes:
        policy: One of `POLICIES`.
        evaluations: For `search`: how many times it may compute what a pipeline's step takes.
        plan: What the rows are arranged for.
        graph: The modules.
    """

    def __init__(
        self,
        plan: Plan,
        graph: ModuleGraph,
        costs: CostModel,
        trains: frozenset[str],
        policy: str = "search",
        evaluations: int = EVALUATIONS,
    ) -> None:
        if policy not in REORDERING_POLICIES:
            raise ValueError(f"there is no policy {policy!r}; choose from {', '.join(REORDERING_POLICIES)}")
        self.policy, self.evaluations = policy, evaluations
        self.plan, self.graph = plan, graph
        self._costs, self._trains = costs, trains
        self._made: dict[int, tuple[ScheduleReplay, IntervalFillingOrder]] = {}

    def row_order(self, rows: LoadsByModule) -> Order:
        """The order for rows with these loads.

        Raises PlanError if the plan cannot divide so many rows.
        """
        return REORDERING_POLICIES[self.policy](self, rows)

    def step_seconds(self, rows: LoadsByModule) -> float:
        """What a step takes with the rows in this order, as `simulate` has it."""
        replay, _, table = self.replay_with_costs(rows)
        return float(replay.step_seconds(table, _given(replay)).max())

    def replay_with_costs(self, rows: LoadsByModule) -> tuple[ScheduleReplay, IntervalFillingOrder, CellSeconds]:
        """The plan's pipelines, and the seconds of their cells."""
        of_step = plan_costs(self.plan, self.graph, self._costs, rows, self._trains)
        count = _count(rows)
        if count not in self._made:
            trained = trained_stages(self.plan, self.graph, self._trains)
            schedule = build_schedule(self.plan, self.graph, trained)
            devices = replica_devices(self.plan, schedule.op_graph.stage_graph.stages)
            replay = build_replay(devices, schedule, schedule.op_graph, of_step, count // self.plan.microbatches)
            self._made[count] = replay, IntervalFillingOrder(replay)
        replay, intervals = self._made[count]
        return replay, intervals, replay.cell_seconds(of_step)


def _none(arranger: RowReorderer, rows: LoadsByModule) -> Order:
    return np.arange(_count(rows))


def _instances(arranger: RowReorderer, rows: LoadsByModule) -> Order:
    units, m = arranger.plan.units, arranger.plan.microbatches
    count = _count(rows)
    each = count // m
    instances = math.lcm(*(unit.dp for unit in units))
    if each % instances:
        instances = math.gcd(each, *(unit.dp for unit in units))
    work = [
        module.forward_flops(rows[module.name]) / len(arranger.plan.unit_of(module.name).devices)
        for module in arranger.graph.modules
    ]
    groups = balanced_groups(np.sum(work, axis=0), instances)
    return groups.reshape(instances, m, -1).transpose(1, 0, 2).ravel()


def _microbatches(arranger: RowReorderer, rows: LoadsByModule) -> Order:
    replay, intervals, table = arranger.replay_with_costs(rows)
    return _rows_of(replay, intervals.orders(table), _count(rows))


def _both(arranger: RowReorderer, rows: LoadsByModule) -> Order:
    first = _instances(arranger, rows)
    return first[_microbatches(arranger, {module: loads[first] for module, loads in rows.items()})]


def _search(arranger: RowReorderer, rows: LoadsByModule) -> Order:
    replay, intervals, table = arranger.replay_with_costs(rows)
    given = _given(replay)
    ascending = balanced_groups(table[: len(replay.compute_rows)].sum(axis=0), replay.pipelines)
    filled = np.take_along_axis(ascending, intervals.orders(table[:, ascending.ravel()]) - given[:, :1], axis=1)
    seconds = replay.step_seconds(table, np.concatenate([ascending, filled, given])).reshape(3, -1)
    begin = np.where((seconds[0] < seconds[1])[:, None], ascending, filled)
    found = search_orders(replay, table, begin, arranger.evaluations - seconds.size)
    if replay.step_seconds(table, found).max() > seconds[2].max():
        found = given
    return _rows_of(replay, found, _count(rows))


REORDERING_POLICIES: Mapping[str, Callable[[RowReorderer, LoadsByModule], Order]] = {
    "none": _none,
    "intra_microbatch": _instances,
    "inter_microbatch": _microbatches,
    "both": _both,
    "search": _search,
}


def _count(rows: LoadsByModule) -> int:
    return len(next(iter(rows.values())))


def _given(replay: ScheduleReplay) -> Int[np.ndarray, "p m"]:
    return np.arange(replay.pipelines * replay.microbatches).reshape(replay.pipelines, -1)


def _rows_of(replay: ScheduleReplay, orders: Int[np.ndarray, "p m"], count: int) -> Order:
    """The rows of cells: a cell's stay together, in their order."""
    shape = (replay.microbatches, replay.pipelines, -1)
    by_cell = np.arange(count).reshape(shape).transpose(1, 0, 2).reshape(orders.size, -1)
    return by_cell[orders].transpose(1, 0, 2).ravel()
