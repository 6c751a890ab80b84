"""The node on which each row lies, and an order of a phase's rows by which little is exchanged between nodes.

`item_tables.py` orders the rows of a phase by it.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from sharding.balancing.postbalancing.nodewise import SentItems, inter_node_volume, place_batches
from sharding.plans.unit_plan import UnitPlan


def shared_nodes(
    phase: UnitPlan, backbone: UnitPlan, stage: int, rows: int, microbatches: int, devices_per_node: int
) -> int:
    """Number of nodes that divide a phase's rows, and the backbone's rows, evenly and in the same order; else 1.

    They must do so in every microbatch, whichever pipeline replicas of the units take it.

    Args:
        phase: A unit with rows of its own.
        backbone: The backbone's unit.
        stage: The stage of the backbone that exchanges activations with the phase.
        rows: Rows of a microbatch in the backbone.
        microbatches: Microbatches of a step.
        devices_per_node: Devices of a node.
    """
    if rows % backbone.parallelism.dp:
        return 1
    pairs = set(
        zip(phase.replica_of_microbatches(microbatches), backbone.replica_of_microbatches(microbatches), strict=True)
    )
    counts = {
        _nodes_in_order(
            _node_of_rows(
                phase.pipeline_replica_devices(0, pipeline_replica),
                phase.parallelism.replica_size,
                phase.phase_rows,
                devices_per_node,
            ),
            _node_of_rows(
                backbone.pipeline_replica_devices(stage, other),
                backbone.parallelism.replica_size,
                rows,
                devices_per_node,
            ),
        )
        for pipeline_replica, other in pairs
    }
    return counts.pop() if len(counts) == 1 else 1


def _nodes_in_order(phase_nodes: Int[np.ndarray, " p"], backbone_nodes: Int[np.ndarray, " b"]) -> int:
    """Number of nodes that divide both lists of rows, given by node, evenly and in the same order; else 1."""
    order = phase_nodes[np.sort(np.unique(phase_nodes, return_index=True)[1])]
    for nodes in (phase_nodes, backbone_nodes):
        if len(nodes) % len(order) or not np.array_equal(nodes, np.repeat(order, len(nodes) // len(order))):
            return 1
    return len(order)


def _node_of_rows(devices: Sequence[int], replica_size: int, rows: int, per_node: int) -> Int[np.ndarray, " r"]:
    """The node of each row: the node of the first device of the replica that computes it."""
    replicas = np.array(devices[::replica_size]) // per_node
    return np.repeat(replicas, rows // len(replicas))


def rows_near_their_items(
    lengths: Int[np.ndarray, " k"],
    phase_rows: Int[np.ndarray, " k"],
    batch_rows: Int[np.ndarray, " k"],
    rows: tuple[int, int],
    nodes: int,
) -> Int[np.ndarray, " k"]:
    """The phase's row of each item after whole rows changed places, so that less crosses nodes; never more.

    Args:
        lengths: Token slots of each item.
        phase_rows: The row of the phase to which each item was dealt.
        batch_rows: The row of each item in the global batch.
        rows: Rows of a microbatch, in the phase and in the global batch.
        nodes: Nodes that divide both in order.
    """
    phase_count, batch_count = rows
    per_node = phase_count // nodes
    node_of_row = np.arange(phase_count) // per_node
    # The search knows replicas of one kind: an item comes from some row of the phase on the node of its batch row.
    source = batch_rows // (batch_count // nodes) * per_node + np.arange(len(lengths)) % per_node
    placed = place_batches(SentItems(lengths, source, phase_rows), phase_count, per_node)[phase_rows]
    crossing = [inter_node_volume(lengths, source, target, node_of_row).sum() for target in (phase_rows, placed)]
    return placed if crossing[1] < crossing[0] else phase_rows
