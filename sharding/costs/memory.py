"""Bytes on a device: what weights and optimizer take all the time, and what a microbatch leaves for its backward."""

import numpy as np
from jaxtyping import Shaped

from sharding.costs.cost_model import CostModel, LayerParallelism, Times
from sharding.specs.layer import LayerSpec, Loads

Numbers = Shaped[np.ndarray, "..."] | float | int
"""Shapes that broadcast."""

MASTER_BYTES, MOMENT_BYTES, GRADIENT_BYTES = 4, 8, 4


def saved_activation_bytes(
    layer: LayerSpec, loads: Loads, ranks: LayerParallelism, recompute: str, costs: CostModel
) -> Times:
    """Bytes that one layer keeps from its forward to its backward on each device, for each load of an instance.

    Args:
        layer: The layer.
        loads: What an instance gets.
        ranks: Who computes it.
        recompute: What the backward computes again.
        costs: For the precision of the compute.
    """
    kept = layer.saved[recompute]
    whole = kept.replicated.at(loads) / ranks.for_layer(layer).sequence_shards
    return np.asarray(costs.element_bytes * (kept.split.at(loads) / ranks.tp + whole) / ranks.cp)


def train_state_bytes(parameters: Numbers, trained: Numbers, dp: Numbers, costs: CostModel) -> Times:
    """Bytes of weights, gradients and Adam's state, the float32 state divided among `dp` ranks (ZeRO-1).

    Args:
        parameters: Numbers in the parameters of a device.
        trained: Those of them that train.
        dp: Data and sequence ranks, which have these parameters alike; of experts, those that have the same ones.
        costs: For the precision of the compute.
    """
    weights = (costs.element_bytes + MASTER_BYTES / dp) * parameters
    return np.asarray(weights + (GRADIENT_BYTES + MOMENT_BYTES / dp) * trained)
