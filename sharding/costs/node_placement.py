"""How the ranks that hold the same parameters, or shards of the same, lie on nodes.

The placement tells cost models which links a gather of weights or a reduction of gradients passes.
"""

import functools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int


class NodePlacement(NamedTuple):
    """Ranks that exchange parameters.

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
        """The placement of all ranks on one node."""
        return cls(ranks, 1, ranks, ranks)


class ParameterRanks(NamedTuple):
    """The ranks of a stage that exchange parameters; both are (all parameters but experts', experts').

    Tensor and expert ranks hold different parameters; where their groups lie differently, this is the slowest of them.

    Attributes:
        same: Ranks that hold the same parameters between layers' uses, and exchange them once a step.
        parts: Ranks that hold shards of the same parameters, and gather them whenever a layer computes
            (`Parallelism.fsdp`).
    """

    same: tuple[NodePlacement, NodePlacement]
    parts: tuple[NodePlacement, NodePlacement]


def parameter_ranks(
    devices: Sequence[int], devices_per_node: int, *, dp: int, cp: int, tp: int, ep: int, fsdp: int
) -> ParameterRanks:
    """The ranks of a stage that exchange parameters of a module.

    Args:
        devices: The devices of the stage, of all pipeline replicas of its unit: by pipeline replica, then by data,
            context-parallel and tensor rank.
        devices_per_node: Devices of a node; device numbers run through one node before the next.
        dp, cp, tp, ep, fsdp: Ranks of each kind, `dp` counting the replicas of all pipeline replicas; `ep` consecutive
            replicas divide the experts, `fsdp` all weights.
    """
    sizes = (dp, cp, tp, ep, fsdp)
    if tuple(devices) == tuple(range(devices[0], devices[0] + len(devices))):
        return _of_consecutive_devices(devices[0] % devices_per_node, devices_per_node, *sizes)
    return _placements(np.asarray(devices) // devices_per_node, *sizes)


@functools.lru_cache(maxsize=4096)
def _of_consecutive_devices(
    first: int, devices_per_node: int, dp: int, cp: int, tp: int, ep: int, fsdp: int
) -> ParameterRanks:
    return _placements((first + np.arange(dp * cp * tp)) // devices_per_node, dp, cp, tp, ep, fsdp)


def _placements(device_nodes: Int[np.ndarray, " n"], dp: int, cp: int, tp: int, ep: int, fsdp: int) -> ParameterRanks:
    """Returns the placement of a stage's ranks, given the node of each device."""
    group = max(fsdp, ep)
    nodes = device_nodes.reshape(dp // group, group // ep, ep, cp, tp)  # whole weights, shards, expert ranks, ...
    tensor_ranks = [nodes[..., tensor] for tensor in range(tp)]
    expert_ranks = [tensor_nodes[:, :, expert] for tensor_nodes in tensor_ranks for expert in range(ep)]
    if fsdp == 1:
        one = NodePlacement.on_one_node(1)
        return ParameterRanks((_farthest_apart(tensor_ranks), _farthest_apart(expert_ranks)), (one, one))
    shards = [expert_nodes[:, part] for expert_nodes in expert_ranks for part in range(group // ep)]
    copies = [
        tensor_nodes[copy, ..., rank]
        for tensor_nodes in tensor_ranks
        for copy in range(dp // group)
        for rank in range(cp)
    ]
    expert_copies = [copy_nodes[:, expert] for copy_nodes in copies for expert in range(ep)]
    same = _farthest_apart(shards)
    return ParameterRanks((same, same), (_farthest_apart(copies), _farthest_apart(expert_copies)))


def _farthest_apart(groups: Iterable[Int[np.ndarray, "..."]]) -> NodePlacement:
    """Selects, of groups that work at the same time, the one on the most nodes with the fewest ranks on one of them."""
    return max(map(_placement, groups), key=lambda placement: (placement.nodes, -placement.fewest, placement.most))


def _placement(nodes: Int[np.ndarray, "..."]) -> NodePlacement:
    _, counts = np.unique(nodes, return_counts=True)
    return NodePlacement(nodes.size, len(counts), int(counts.min()), int(counts.max()))
