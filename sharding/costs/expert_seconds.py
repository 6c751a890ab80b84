"""Seconds in which tokens get to the ranks that hold their experts, or the sums back.

The analytic cost model adds these seconds to a layer with experts.
"""

from configs.clusters import Link
from sharding.costs.cost_model import LayerParallelism, Times, collective_seconds
from sharding.costs.node_placement import NodePlacement
from sharding.expert_transfer import ExpertTransfer, Routing, ranks_of_node, tokens_exchanged


def expert_nodes(ranks: LayerParallelism, devices_per_node: int) -> int:
    """Number of nodes with expert ranks, which are consecutive replicas from the first device of a node on."""
    return min(ranks.ep, -(-ranks.ep * ranks.tp * ranks.cp // devices_per_node))


def expert_transfer_seconds(
    size: Times,
    routing: Routing,
    transfer: ExpertTransfer,
    ranks: int,
    nodes: int,
    intra_node: Link,
    inter_node: Link,
) -> Times:
    """Seconds of a transfer: an all-gather or a reduce-scatter, or an all-to-all.

    In an all-to-all a rank exchanges with one other after the other (Thakur et al. 2005), with each what its experts
    are expected to need.

    Args:
        size: Bytes of one rank's tokens.
        routing: The router.
        transfer: Its form.
        ranks: Expert ranks; each tensor and context-parallel rank exchanges with its like.
        nodes: Nodes that they are on.
        intra_node: Link between devices of one node.
        inter_node: Link between nodes, of one device.
    """
    together = ranks_of_node(ranks, nodes)
    if transfer == "gather":
        return collective_seconds(
            size * ranks, NodePlacement(ranks, nodes, ranks // nodes, together), intra_node, inter_node
        )
    moved = tokens_exchanged(routing, ranks, nodes)
    inside = (together - 1) * intra_node.latency + float(moved.inside) * size / intra_node.bandwidth
    return inside + (ranks - together) * inter_node.latency + float(moved.between) * size / inter_node.bandwidth
