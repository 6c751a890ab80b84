"""Bytes on a device: weights and optimizer state, and what a microbatch saves for its backward."""

import numpy as np
from jaxtyping import Shaped

from sharding.costs.cost_model import CostModel, LayerParallelism, Times
from sharding.specs.layer import LayerSpec, Loads, RecomputePolicy, SavedActivations

Elements = Shaped[np.ndarray, "..."] | float | int
"""Numbers of elements; arrays broadcast against each other."""

MASTER_BYTES, MOMENT_BYTES, GRADIENT_BYTES = 4, 8, 4
"""Bytes per parameter in float32: the master weight, Adam's two moments, the gradient."""


def saved_activation_bytes(
    layer: LayerSpec, loads: Loads, ranks: LayerParallelism, recompute: RecomputePolicy, costs: CostModel
) -> Times:
    """Bytes that one layer saves from its forward to its backward on each device, for each load of a replica.

    Args:
        layer: The layer.
        loads: Loads of a replica.
        ranks: Who computes the layer.
        recompute: The recomputation policy.
        costs: Gives the compute precision.
    """
    return _bytes(layer.saved[recompute], layer, loads, ranks, costs)


def offloaded_bytes(layer: LayerSpec, loads: Loads, ranks: LayerParallelism, costs: CostModel) -> Times:
    """Bytes that one layer saves in host memory under recomputation `offload`; as `saved_activation_bytes`."""
    return _bytes(layer.offloaded, layer, loads, ranks, costs)


def _bytes(saved: SavedActivations, layer: LayerSpec, loads: Loads, ranks: LayerParallelism, costs: CostModel) -> Times:
    replicated = saved.replicated.at(loads) / ranks.for_layer(layer).sequence_shards
    return np.asarray(costs.element_bytes * (saved.split.at(loads) / ranks.tp + replicated) / ranks.cp)


def train_state_bytes(parameters: Elements, trained: Elements, dp: Elements, costs: CostModel) -> Times:
    """Bytes of weights, gradients and Adam's state, with the float32 state divided among `dp` ranks (ZeRO-1).

        (compute + master / dp) * parameters + (gradient + compute + moments / dp) * trained

    A backward makes the gradients of its microbatch in compute precision before it adds them to those in float32.

    Args:
        parameters: Elements of the parameters on a device.
        trained: Elements of those that train.
        dp: Data and context-parallel ranks that hold the same parameters; of experts, those that hold the same experts.
        costs: Gives the compute precision.
    """
    weights = (costs.element_bytes + MASTER_BYTES / dp) * parameters
    return np.asarray(weights + (GRADIENT_BYTES + costs.element_bytes + MOMENT_BYTES / dp) * trained)
