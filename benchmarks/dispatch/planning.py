"""Processor time of planning a step on the host, and what node-wise placement saves between nodes."""

import statistics
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.dispatch.arrangement import NOT_NODE_WISE, ORCHMLLM, Exchange, arrange
from benchmarks.dispatch.samples import StepSamples
from benchmarks.dispatch.settings import PLANNING_GOAL_MS, PLANNING_REPLICAS
from benchmarks.dispatch.steps import CLUSTER
from benchmarks.dispatch.traffic import most_sent_between_nodes
from benchmarks.rows import paper_row

REPEATS = 7


def planning_rows(samples: StepSamples) -> list[dict[str, Any]]:
    """Milliseconds of all phases, placements and compositions of the largest step, with and without placement."""
    title = f"planning a step, {samples.replicas:,} replicas x {samples.mini_batch} samples"
    return [
        paper_row(f"{title}: ms", _milliseconds(samples, True), goal=PLANNING_GOAL_MS, most=True),
        paper_row(f"{title}, without node-wise placement: ms", _milliseconds(samples, False)),
    ]


def _milliseconds(samples: StepSamples, node_wise: bool) -> float:
    """The median processor time of one core, in milliseconds."""
    milliseconds = []
    for _ in range(REPEATS):
        start = time.process_time()
        arrange(samples, ORCHMLLM if node_wise else NOT_NODE_WISE, CLUSTER.devices_per_node)
        milliseconds.append((time.process_time() - start) * 1e3)
    return statistics.median(milliseconds)


def placement_rows(samples: StepSamples) -> list[dict[str, Any]]:
    """Bytes that a replica sends between nodes at most, with and without placement: in a step, and by exchange."""
    rows, per_node = [], CLUSTER.devices_per_node
    for replicas in PLANNING_REPLICAS:
        some = samples.first(samples.mini_batch, replicas)
        without, placed = (arrange(some, balancing, per_node).exchanges for balancing in (NOT_NODE_WISE, ORCHMLLM))
        title = f"{replicas:,} replicas x {some.mini_batch} samples, between nodes"
        rows += _sent_rows(title, without, placed, replicas)
        for before, after in zip(without, placed, strict=True):
            rows += _sent_rows(f"{title}, {before.name}", (before,), (after,), replicas)
    return rows


def _sent_rows(
    title: str, without: Sequence[Exchange], placed: Sequence[Exchange], replicas: int
) -> list[dict[str, Any]]:
    before, after = (
        most_sent_between_nodes(exchanges, replicas, CLUSTER.devices_per_node) for exchanges in (without, placed)
    )
    return [
        paper_row(f"{title}, without node-wise placement: MB", before / 1e6),
        paper_row(f"{title}, placed: MB", after / 1e6),
        paper_row(f"{title}, placed: share of the bytes without", after / before),
    ]
