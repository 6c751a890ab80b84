"""Seconds for which hops occupy the devices at both ends (`PlanningProblem.rendezvous`), and the waits they cause.

Estimates add them to what stages compute; what a hop takes is asked of `HopCosts`. A hop between units waits for all
replicas of both where items are dealt, and counts on the replica that it takes longest for.
"""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from sharding.costs.batch_costs import BatchCosts
from sharding.costs.stages.hop_costs import HopCosts
from sharding.plans.resolved.stage_graph import StageGraph, StageId
from sharding.plans.unit_layers import program_layers
from sharding.plans.unit_plan import UnitPlan


class EdgeSeconds(NamedTuple):
    """Seconds of the hops of every microbatch between two stages.

    Attributes:
        forward: Of the activations.
        backward: Of the gradients, where they are sent.
    """

    forward: Float[np.ndarray, " m"]
    backward: Float[np.ndarray, " m"]


def hops_between(source: UnitPlan, target: UnitPlan, microbatches: int, batch: BatchCosts) -> EdgeSeconds:
    """The hops from the last stage of one unit to the first of another, as if their devices followed each other."""
    first, last = (target.name, 0), (source.name, source.program_count - 1)
    senders, receivers = len(source.stage_devices(last[1])), len(target.stage_devices(0))
    stages = StageGraph(
        {last: frozenset(range(senders)), first: frozenset(range(senders, senders + receivers))},
        ((last, first),),
        exchanges=frozenset([(last, first)] if source.phase_rows or target.phase_rows else []),
    )
    hops = HopCosts((source, target), program_layers((source, target), batch.graph), microbatches, batch, stages)
    return _edge_seconds(hops, last, first)


def hops_within(unit: UnitPlan, microbatches: int, batch: BatchCosts) -> Float[np.ndarray, "2 s-1"]:
    """Mean seconds of a microbatch's hops between consecutive stages of a unit, forward and back.

    Hops of equal arrays that are inside a node, or between nodes, are costed once.
    """
    runs, per_node = program_layers((unit,), batch.graph), batch.costs.devices_per_node
    known: dict[tuple, tuple[float, float]] = {}
    seconds = []
    for number in range(unit.program_count - 1):
        source, target = (unit.name, number), (unit.name, number + 1)
        ends = [unit.stage_devices(stage) for stage in (number, number + 1)]
        before, after = runs[source][-1], runs[target][0]
        layer = batch.graph[before.module].layers_between(max(before.last - 1, 0), before.last)[-1][0].name
        nodes = {device // per_node for devices in ends for device in (devices[0], devices[-1])}
        key = (before.module, layer, after.module, len(nodes) == 1)
        if key not in known:
            stages = StageGraph(
                {stage: frozenset(devices) for stage, devices in zip((source, target), ends, strict=True)},
                ((source, target),),
            )
            edge = _edge_seconds(HopCosts((unit,), runs, microbatches, batch, stages), source, target)
            known[key] = float(edge.forward.mean()), float(edge.backward.mean())
        seconds.append(known[key])
    return np.array(seconds, float).reshape(-1, 2).T


def _edge_seconds(hops: HopCosts, source: StageId, target: StageId) -> EdgeSeconds:
    return EdgeSeconds(*(hops.seconds(source, target, back).max(axis=1) for back in (False, True)))


def ring_waits(chunks: int) -> float:
    """Share of its work that a pipeline rank waits around the ring of ranks with chunks, where hops occupy both ends.

    The last rank sends to the first, so that all wait for each other; more chunks send more often. Interleaved steps of
    four models, simulated, wait 8% to 26% with 2 chunks and 16% to 27% with 4; this is 18% and 25%.
    """
    return 0.125 * math.sqrt(chunks) if chunks > 1 else 0.0


def rank_hop_seconds(hops: Float[np.ndarray, " s-1"], pp: int) -> Float[np.ndarray, " p"]:
    """Seconds of hops between consecutive stages, on each pipeline rank: virtual stage v is on rank v % pp.

    Args:
        hops: Seconds of a microbatch's hops from each stage to the next, forward and back.
        pp: Number of pipeline ranks.
    """
    sent, received = np.append(hops, 0.0), np.append(0.0, hops)
    return (sent + received).reshape(-1, pp).sum(axis=0)
