"""Which physical instance hosts which batch, so that little travels between nodes (OrchMLLM 5.2.2, Algorithm 3).

Balancing fixes what lies together in a batch, not where: permuting the batches changes no cost. Links within a node are
many times faster than links between nodes, so what counts is what instance i sends to instances of other nodes, and of
that the largest over all i (equation 5, whose text says intra-node where it means inter-node).
"""

import numpy as np
from jaxtyping import Int

from sharding.balancing.postbalancing.nodewise_search import PlacementSearch, SendVolumes

LEAST_PATIENCE = 8
MOST_PATIENCE = 1200  # divided by the instances: where a step is cheap, there is time for more


def inter_node_volume(
    lengths: Int[np.ndarray, " n"],
    source: Int[np.ndarray, " n"],
    target: Int[np.ndarray, " n"],
    nodes: Int[np.ndarray, " d"],
) -> Int[np.ndarray, " d"]:
    """What every instance sends to instances of other nodes, in the unit of the lengths.

    Args:
        lengths: Of the items.
        source: The instance that has each.
        target: The instance to which it goes.
        nodes: The node of every instance.
    """
    leaving = nodes[source] != nodes[target]
    sent = np.bincount(source[leaving], weights=lengths[leaving], minlength=len(nodes))
    return sent.astype(np.int64)


def place_batches(
    lengths: Int[np.ndarray, " n"],
    source: Int[np.ndarray, " n"],
    batch: Int[np.ndarray, " n"],
    instances: int,
    per_node: int,
) -> Int[np.ndarray, " d"]:
    """The instance that hosts every batch, each a different one; instance i is on node `i // per_node`.

    A search in place of the paper's integer program: the instance that sends most gets its largest share among the
    batches that nobody hosts yet onto its node; where its node is full or its share small, batches are exchanged with
    another node, the exchange after which the worst of all instances on both nodes is best. Exchanges that make it
    worse are made too, with the batch it was for held fast for a while (tabu search), and the best placement of all is
    returned.

    Args:
        lengths: Of the items.
        source: The instance that has each.
        batch: The batch of each, from any balancing.
        instances: How many there are, which is also how many batches.
        per_node: Instances a node.

    Raises:
        ValueError: Instances cannot be divided into nodes.
    """
    if instances < 1 or per_node < 1 or instances % per_node:
        raise ValueError(f"{instances} instances cannot be divided into nodes of {per_node}")
    nodes = instances // per_node
    totals = np.bincount(source, weights=lengths, minlength=instances).astype(np.int64)
    patience = max(MOST_PATIENCE // instances, LEAST_PATIENCE)
    # Who has less than the worst will send cannot be the worst. If that guess was too high, all take part after all.
    ignored = int(totals.mean() * max(0.0, 1 - 4 / nodes))
    node, sent = PlacementSearch(SendVolumes(lengths, source, batch, totals, ignored), per_node).run(patience)
    if ignored and sent <= ignored:
        node, _ = PlacementSearch(SendVolumes(lengths, source, batch, totals, 0), per_node).run(patience)
    return _hosts(node)


def _hosts(node: list[int]) -> Int[np.ndarray, " d"]:
    """A node's batches on its instances, in order."""
    hosts = np.empty(len(node), np.int64)
    hosts[np.argsort(node, kind="stable")] = np.arange(len(node))
    return hosts
