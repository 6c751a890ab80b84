"""A search for the order of microbatches in every pipeline that makes the slowest of them as fast as can be found."""

import dataclasses

import numpy as np
from jaxtyping import Float, Int

from sharding.balancing.reordering.replay import CellSeconds, ScheduleReplay

WORST = 8
ROUND = 128
"""Evaluations of a round: pipelines whose times a processor's cache holds."""


@dataclasses.dataclass(frozen=True, eq=False)
class _Moves:
    """Exchanges of two cells; where they are of one pipeline, the second order is the first again.

    Attributes:
        pipelines: The pipeline of each move that is to get faster.
        others: The one that it exchanges a cell with.
        orders, other_orders: Both after the move.
    """

    pipelines: Int[np.ndarray, " k"]
    others: Int[np.ndarray, " k"]
    orders: Int[np.ndarray, "k m"]
    other_orders: Int[np.ndarray, "k m"]


def search_orders(
    replay: ScheduleReplay, table: CellSeconds, orders: Int[np.ndarray, "p m"], evaluations: int
) -> Int[np.ndarray, "p m"]:
    """Orders whose slowest pipeline is never slower than that of the orders given.

    In every round the slowest pipelines try to exchange two of their cells, and one of theirs with one of a fast
    pipeline; each takes the exchange that helps it most and makes no other as slow. The same arguments give the same
    orders.

    Args:
        replay: The schedule.
        table: Seconds of the cells.
        orders: Where the search begins; every cell stands once.
        evaluations: How many pipelines' steps may be computed, rounded up to whole rounds.
    """
    random = np.random.default_rng(0)
    orders = orders.copy()
    seconds = replay.step_seconds(table, orders)
    if orders.size == 1:
        return orders
    for _ in range(-(-(evaluations - len(orders)) // ROUND)):
        slowest = np.argsort(-seconds, kind="stable")
        count = min(WORST, max(1, len(orders) // 2))
        _improve(replay, table, orders, seconds, _propose(orders, slowest, count, random))
    return orders


def _propose(
    orders: Int[np.ndarray, "p m"], slowest: Int[np.ndarray, " p"], count: int, random: np.random.Generator
) -> _Moves:
    """A round's exchanges: half of the evaluations inside of a pipeline, half with another, which cost two each."""
    pipelines, m = orders.shape
    share = ROUND // count
    inside = 0 if m == 1 else share if pipelines == 1 else share // 2
    across = 0 if pipelines == 1 else (share - inside) // 2
    worst = slowest[:count]
    mine = np.concatenate([np.repeat(worst, inside), np.repeat(worst, across)])
    fast = slowest[max(count, pipelines // 2) :]
    partners = fast[random.integers(len(fast), size=count * across)] if across else mine[:0]
    others = np.concatenate([mine[: count * inside], partners])
    here = random.integers(m, size=len(mine))
    there = (here + random.integers(1, max(m, 2), size=len(mine))) % m
    moved, received = orders[mine], orders[others]
    each = np.arange(len(mine))
    moved[each, here], received[each, there] = orders[others, there], orders[mine, here]
    within = mine == others
    moved[within, there[within]] = orders[mine[within], here[within]]
    # Every other exchange inside of a pipeline is a double one, which leads out of where no single one helps.
    twice = np.flatnonzero(within)[::2]
    one, two = random.integers(m, size=(2, len(twice)))
    moved[twice, one], moved[twice, two] = moved[twice, two], moved[twice, one]
    received[within] = moved[within]
    return _Moves(mine, others, moved, received)


def _improve(
    replay: ScheduleReplay,
    table: CellSeconds,
    orders: Int[np.ndarray, "p m"],
    seconds: Float[np.ndarray, " p"],
    moves: _Moves,
) -> None:
    """Makes the best move of each pipeline that helps, in place."""
    across = moves.pipelines != moves.others
    found = replay.step_seconds(table, np.concatenate([moves.orders, moves.other_orders[across]]))
    own, other = found[: len(across)], found[: len(across)].copy()
    other[across] = found[len(across) :]
    slower = np.maximum(own, other)
    touched: set[int] = set()
    for move in np.argsort(slower, kind="stable").tolist():
        pair = {int(moves.pipelines[move]), int(moves.others[move])}
        if slower[move] < seconds[moves.pipelines[move]] and not touched & pair:
            touched |= pair
            orders[moves.pipelines[move]], seconds[moves.pipelines[move]] = moves.orders[move], own[move]
            if across[move]:
                orders[moves.others[move]], seconds[moves.others[move]] = moves.other_orders[move], other[move]
