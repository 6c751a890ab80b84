"""How the ranks that hold the same parameters, or shards of the same, lie on nodes.

The placement tells cost models which links a gather of weights or a reduction of gradients passes.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from sharding.plans.device_numbers import as_devices


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
    devices = as_devices(devices)
    if isinstance(devices, range):
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
    # Whole weights, shards, expert ranks, context-parallel ranks, tensor ranks.
    nodes = device_nodes.reshape(dp // group, group // ep, ep, cp, tp)
    if fsdp == 1:
        one = NodePlacement.on_one_node(1)
        of_tensor_rank = _farthest_apart(nodes.transpose(4, 0, 1, 2, 3).reshape(tp, -1))
        of_expert_rank = _farthest_apart(nodes.transpose(4, 2, 0, 1, 3).reshape(tp * ep, -1))
        return ParameterRanks((of_tensor_rank, of_expert_rank), (one, one))
    of_shard = _farthest_apart(nodes.transpose(4, 2, 1, 0, 3).reshape(tp * group, -1))
    of_copy = _farthest_apart(nodes.transpose(4, 0, 3, 1, 2).reshape(-1, group))
    of_expert_copy = _farthest_apart(nodes.transpose(4, 0, 3, 2, 1).reshape(-1, group // ep))
    return ParameterRanks((of_shard, of_shard), (of_copy, of_expert_copy))


def _farthest_apart(groups: Int[np.ndarray, "g n"]) -> NodePlacement:
    """Selects, of groups that work at the same time, the one on the most nodes with the fewest ranks on one of them.

    Args:
        groups: The node of each rank of each group.
    """
    ordered = np.sort(groups, axis=1)
    is_first = np.ones(groups.shape, bool)  # of the ranks on a node
    is_first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    ranks_on_node = np.diff(np.flatnonzero(is_first), append=groups.size)  # group after group
    nodes = is_first.sum(axis=1)
    of_group = np.concatenate([[0], np.cumsum(nodes)[:-1]])
    fewest = np.minimum.reduceat(ranks_on_node, of_group)
    most = np.maximum.reduceat(ranks_on_node, of_group)
    farthest = np.lexsort([most, -fewest, nodes])[-1]
    return NodePlacement(groups.shape[1], int(nodes[farthest]), int(fewest[farthest]), int(most[farthest]))
