"""Bytes of a step's exchanges between nodes and inside them, and the seconds that they take; nothing hides them."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from benchmarks.dispatch.arrangement import Exchange
from sharding.balancing.postbalancing.nodewise import inter_node_volume
from sharding.costs.analytic import AnalyticCostModel
from sharding.costs.node_placement import NodePlacement


class Traffic(NamedTuple):
    """Bytes of the slowest replica: the more of what it sends and what it receives.

    Attributes:
        between: To and from other nodes.
        inside: To and from other replicas of its node.
    """

    between: float
    inside: float


def traffic(exchange: Exchange, replicas: int, per_node: int) -> Traffic:
    """Bytes that an all-to-all sends once."""
    source, target = exchange.source, exchange.target
    between = source // per_node != target // per_node
    inside = ~between & (source != target)
    return Traffic(*(_largest(exchange, chosen, replicas) for chosen in (between, inside)))


def _largest(exchange: Exchange, chosen: Int[np.ndarray, " n"], replicas: int) -> float:
    ends: tuple[Float[np.ndarray, " d"], ...] = tuple(
        np.bincount(end[chosen], weights=exchange.sizes[chosen], minlength=replicas)
        for end in (exchange.source, exchange.target)
    )
    return float(np.max(ends))


def most_sent_between_nodes(exchanges: Iterable[Exchange], replicas: int, per_node: int) -> int:
    """Bytes that the replica which sends most sends to other nodes (equation 5), summed over all passes of a step."""
    nodes, sent = np.arange(replicas) // per_node, 0
    for exchange in exchanges:
        ends = (exchange.source, exchange.target)
        for source, target in (ends, ends[::-1])[: exchange.passes]:
            sent += int(inter_node_volume(exchange.sizes, source, target, nodes).max())
    return sent


def all_to_all_seconds(exchanges: Iterable[Exchange], replicas: int, costs: AnalyticCostModel) -> float:
    """Seconds of all exchanges of a step, one after another, each first between nodes and then inside."""
    seconds = 0.0
    for exchange in exchanges:
        between, inside = traffic(exchange, replicas, costs.devices_per_node)
        seconds += exchange.passes * float(costs.hop(between, False, replicas) + costs.hop(inside, True, replicas))
    return seconds


def gathered_bytes(exchange: Exchange, replicas: int) -> float:
    """Bytes that each replica holds where all gather everything, padded to the fullest replica (equation 3)."""
    return replicas * float(np.bincount(exchange.source, weights=exchange.sizes, minlength=replicas).max())


def all_gather_seconds(exchanges: Iterable[Exchange], replicas: int, costs: AnalyticCostModel) -> float:
    """Seconds of the exchanges if every replica gathers everything; gradients are scattered in as many."""
    per_node = min(replicas, costs.devices_per_node)
    placement = NodePlacement(replicas, replicas // per_node, per_node, per_node)
    elements = ((exchange.passes, gathered_bytes(exchange, replicas) / costs.element_bytes) for exchange in exchanges)
    return sum((passes * costs.gather_weights(size, placement) for passes, size in elements), start=0.0)
