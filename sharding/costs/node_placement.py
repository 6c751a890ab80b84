"""How the ranks that hold the same parameters lie on nodes."""

import functools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np


class NodePlacement(NamedTuple):
    """Ranks that hold the same parameters.

    Attributes:
        ranks: How many there are.
        nodes: How many nodes have some of them.
        fewest: How many are on the node that has the fewest.
        most: How many are on the node that has the most.
    """

    ranks: int
    nodes: int = 1
    fewest: int = 1
    most: int = 1

    @classmethod
    def on_one_node(cls, ranks: int) -> "NodePlacement":
        """All ranks on one node."""
        return cls(ranks, 1, ranks, ranks)


def same_parameter_ranks(
    devices: Sequence[int], devices_per_node: int, dp: int, cp: int, tp: int, ep: int
) -> tuple[NodePlacement, NodePlacement]:
    """The ranks of a stage that hold the same parameters: all but experts', and the same experts'.

    Tensor and expert ranks hold different parameters; where their groups lie differently, this is the slowest of them.

    Args:
        devices: The devices of the stage, by data, context-parallel and tensor rank.
        devices_per_node: Devices of a node; device numbers run through one node before the next.
        dp, cp, tp, ep: Ranks of each kind; `ep` consecutive replicas divide the experts.
    """
    sizes = (dp, cp, tp, ep, devices_per_node)
    if tuple(devices) == tuple(range(devices[0], devices[0] + len(devices))):
        return _of_consecutive_devices(devices[0] % devices_per_node, *sizes)
    return _placements(np.asarray(devices), *sizes)


@functools.lru_cache(maxsize=4096)
def _of_consecutive_devices(
    first: int, dp: int, cp: int, tp: int, ep: int, devices_per_node: int
) -> tuple[NodePlacement, NodePlacement]:
    return _placements(first + np.arange(dp * cp * tp), dp, cp, tp, ep, devices_per_node)


def _placements(
    devices: np.ndarray, dp: int, cp: int, tp: int, ep: int, devices_per_node: int
) -> tuple[NodePlacement, NodePlacement]:
    nodes = (devices // devices_per_node).reshape(dp // ep, ep, cp, tp)
    everywhere = [_placement(nodes[..., tensor]) for tensor in range(tp)]
    of_experts = [_placement(nodes[:, expert, :, tensor]) for expert in range(ep) for tensor in range(tp)]
    return _farthest_apart(everywhere), _farthest_apart(of_experts)


def _farthest_apart(placements: Iterable[NodePlacement]) -> NodePlacement:
    """Of groups of ranks that work at the same time, the one on the most nodes with the fewest ranks on one of them."""
    return max(placements, key=lambda of: (of.nodes, -of.fewest, of.most))


def _placement(nodes: np.ndarray) -> NodePlacement:
    _, counts = np.unique(nodes, return_counts=True)
    return NodePlacement(nodes.size, len(counts), int(counts.min()), int(counts.max()))
