"""A local search for the order of microbatches in every pipeline that makes the slowest pipeline fastest."""

import dataclasses

import numpy as np
from jaxtyping import Float, Int

from sharding.balancing.reordering.replay import PipelineMicrobatchSeconds, ScheduleReplay, StepSeconds

SLOWEST_PIPELINES = 8
"""Pipelines that a round improves."""
EVALUATIONS_PER_ROUND = 128
"""As many as keep their times in the processor's cache."""


@dataclasses.dataclass(frozen=True, eq=False)
class _Swaps:
    """Swaps of two pipeline microbatches; where both are of one pipeline, the second order is the first again.

    Attributes:
        pipelines: The pipeline of each swap that is to become faster.
        partners: The pipeline with which it swaps a pipeline microbatch.
        orders, partner_orders: Both after the swap.
    """

    pipelines: Int[np.ndarray, " k"]
    partners: Int[np.ndarray, " k"]
    orders: Int[np.ndarray, "k m"]
    partner_orders: Int[np.ndarray, "k m"]


def search_orders(
    replay: ScheduleReplay,
    pipeline_microbatch_seconds: PipelineMicrobatchSeconds,
    orders: Int[np.ndarray, "p m"],
    evaluations: int,
) -> Int[np.ndarray, "p m"]:
    """Returns orders whose slowest pipeline is never slower than the slowest pipeline of the given orders.

    In every round the slowest pipelines try to swap two of their pipeline microbatches, and one of theirs with one of a
    fast pipeline; each takes the swap that helps it most and makes no other pipeline as slow. The same arguments give
    the same orders.

    Args:
        replay: The schedule.
        pipeline_microbatch_seconds: Seconds of the pipeline microbatches.
        orders: Initial orders, with every pipeline microbatch once.
        evaluations: How many steps of a pipeline may be computed, rounded up to whole rounds.
    """
    random = np.random.default_rng(0)
    orders = orders.copy()
    step_seconds = StepSeconds(replay, pipeline_microbatch_seconds)
    seconds = step_seconds(orders)
    if orders.size == 1:
        return orders
    for _ in range(-(-(evaluations - len(orders)) // EVALUATIONS_PER_ROUND)):
        slowest = np.argsort(-seconds, kind="stable")
        count = min(SLOWEST_PIPELINES, max(1, len(orders) // 2))
        _improve(step_seconds, orders, seconds, _propose(orders, slowest, count, random))
    return orders


def _propose(
    orders: Int[np.ndarray, "p m"], slowest: Int[np.ndarray, " p"], count: int, random: np.random.Generator
) -> _Swaps:
    """The swaps of a round: half of the evaluations within a pipeline, half with another, which take two each."""
    pipelines, m = orders.shape
    share = EVALUATIONS_PER_ROUND // count
    within_count = 0 if m == 1 else share if pipelines == 1 else share // 2
    between_count = 0 if pipelines == 1 else (share - within_count) // 2
    worst = slowest[:count]
    mine = np.concatenate([np.repeat(worst, within_count), np.repeat(worst, between_count)])
    fast = slowest[max(count, pipelines // 2) :]
    partners = fast[random.integers(len(fast), size=count * between_count)] if between_count else mine[:0]
    partners = np.concatenate([mine[: count * within_count], partners])
    here = random.integers(m, size=len(mine))
    there = (here + random.integers(1, max(m, 2), size=len(mine))) % m
    moved, received = orders[mine], orders[partners]
    index = np.arange(len(mine))
    moved[index, here], received[index, there] = orders[partners, there], orders[mine, here]
    within = mine == partners
    moved[within, there[within]] = orders[mine[within], here[within]]
    # Every other swap within a pipeline is a double one, which leaves orders that no single swap improves.
    twice = np.flatnonzero(within)[::2]
    one, two = random.integers(m, size=(2, len(twice)))
    moved[twice, one], moved[twice, two] = moved[twice, two], moved[twice, one]
    received[within] = moved[within]
    return _Swaps(mine, partners, moved, received)


def _improve(
    step_seconds: StepSeconds,
    orders: Int[np.ndarray, "p m"],
    seconds: Float[np.ndarray, " p"],
    swaps: _Swaps,
) -> None:
    """Makes the best swap of each pipeline that helps, in place."""
    between = swaps.pipelines != swaps.partners
    after = step_seconds(np.concatenate([swaps.orders, swaps.partner_orders[between]]))
    pipeline_seconds, partner_seconds = after[: len(between)], after[: len(between)].copy()
    partner_seconds[between] = after[len(between) :]
    slower = np.maximum(pipeline_seconds, partner_seconds)
    touched: set[int] = set()
    for swap in np.argsort(slower, kind="stable").tolist():
        pair = {int(swaps.pipelines[swap]), int(swaps.partners[swap])}
        if slower[swap] < seconds[swaps.pipelines[swap]] and not touched & pair:
            touched |= pair
            orders[swaps.pipelines[swap]], seconds[swaps.pipelines[swap]] = swaps.orders[swap], pipeline_seconds[swap]
            if between[swap]:
                orders[swaps.partners[swap]], seconds[swaps.partners[swap]] = (
                    swaps.partner_orders[swap],
                    partner_seconds[swap],
                )
