"""The spans of a schedule's ops, from the times of their nodes.

The simulator calls `run_schedule`, and measured timelines call `node_spans`.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from sharding.schedules.recurrence.schedule_nodes import COLLECTIVES, BundleNodes, ScheduleNodes
from sharding.schedules.recurrence.wait_graph import NodeTimes
from sharding.simulation.op_spans.bundle_seconds import bundle_shares
from sharding.simulation.op_spans.op_seconds import SecondsOfOps
from sharding.simulation.op_spans.spans import Span


class BundledSeconds(NamedTuple):
    """Seconds of a bundle's ops that their spans have besides start and end; one entry for each op.

    Attributes:
        communication: As in `Span`.
        beside: As in `Span`.
    """

    communication: tuple[Float[np.ndarray, " i"], Float[np.ndarray, " j"]]
    beside: tuple[Float[np.ndarray, " i"], Float[np.ndarray, " j"]]


def run_schedule(nodes: ScheduleNodes, seconds_of: SecondsOfOps) -> tuple[Span, ...]:
    """The spans of all ops if each starts as soon as it can.

    Args:
        nodes: The schedule.
        seconds_of: How long ops take.
    """
    seconds, communication = np.zeros((2, nodes.graph.count))
    seconds_of = functools.cache(seconds_of)
    for family in nodes.families:
        taken, waiting = seconds_of(family.kind, family.stage, family.target)
        seconds[family.nodes] = taken[family.microbatches] if isinstance(taken, np.ndarray) else taken
        if waiting is not None:
            communication[family.nodes] = waiting[family.microbatches]
    bundled = [_run_bundle(nodes, bundle, seconds_of, seconds) for bundle in nodes.bundles]
    return node_spans(nodes, nodes.graph.run(seconds), communication, bundled)


def _run_bundle(
    nodes: ScheduleNodes, bundle: BundleNodes, seconds_of: SecondsOfOps, seconds: Float[np.ndarray, " n"]
) -> BundledSeconds:
    """Sets the seconds of a bundle's nodes."""
    ops = nodes.schedule.ops[bundle.index : bundle.index + 2]
    alone, waits = [], []
    for op, part in zip(ops, bundle.parts, strict=True):
        taken, waiting = seconds_of(op.kind, op.stage_id, op.target_id)
        alone.append(np.broadcast_to(taken[op.microbatch] if isinstance(taken, np.ndarray) else taken, part.shape))
        waits.append(alone[-1] if waiting is None else waiting[op.microbatch])  # a gather or a reduction only waits
    shares = bundle_shares(bundle.parts, alone, waits, len(bundle.first_shares))
    seconds[bundle.first_shares], seconds[bundle.second_shares] = shares
    communication = [
        np.zeros(len(part)) if op.kind in COLLECTIVES else share[part] - (taken - waiting)
        for op, part, share, taken, waiting in zip(ops, bundle.parts, shares, alone, waits, strict=True)
    ]
    beside = shares[1][bundle.parts[0]], shares[0][bundle.parts[1]]
    return BundledSeconds((communication[0], communication[1]), beside)


def node_spans(
    nodes: ScheduleNodes,
    times: NodeTimes,
    communication: Float[np.ndarray, " n"],
    bundled: Sequence[BundledSeconds],
) -> tuple[Span, ...]:
    """The spans of all ops, in the schedule's order.

    Args:
        nodes: Which nodes the ops have.
        times: When these started and ended.
        communication: Seconds of `Span.communication`, by node.
        bundled: Seconds in the spans of every bundle.
    """
    starts, ends = times
    first_nodes, last_nodes = nodes.first_nodes.tolist(), (nodes.first_nodes + nodes.replicas).tolist()
    spans = [
        Span(op, starts[first:last], ends[first:last], communication[first:last])
        for op, first, last in zip(nodes.schedule.ops, first_nodes, last_nodes, strict=True)
    ]
    for bundle, seconds in zip(nodes.bundles, bundled, strict=True):
        start, end = starts[bundle.first_shares], ends[bundle.second_shares]
        for number, (part, waits, beside) in enumerate(zip(bundle.parts, *seconds, strict=True), bundle.index):
            spans[number] = Span(nodes.schedule.ops[number], start[part], end[part], waits, beside)
    return tuple(spans)
