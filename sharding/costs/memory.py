"""Bytes on a device: weights and optimizer state, and what a microbatch saves for its backward.

`BatchCosts` and `plan_costs` sum these bytes; peak memory follows from them and the schedule.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Shaped

from sharding.costs.cost_model import CostModel, LayerParallelism, Times
from sharding.costs.expert_seconds import expert_nodes
from sharding.expert_transfer import chosen_transfer
from sharding.specs.layers.layer import MATMUL_KINDS, LayerSpec, Loads, RecomputePolicy, SavedActivations

Elements = Shaped[np.ndarray, "..."] | float | int
"""Numbers of elements; arrays broadcast against each other."""

GRADIENT_BYTES = 4
"""Bytes of the gradient of a parameter, in float32."""


def saved_activation_bytes(
    layer: LayerSpec, loads: Loads, ranks: LayerParallelism, recompute: RecomputePolicy, costs: CostModel
) -> Times:
    """Bytes that one layer saves from its forward to its backward on each device, for each load of a replica.

    Args:
        layer: The layer.
        loads: Loads of a replica.
        ranks: The ranks that compute the layer.
        recompute: The recomputation policy.
        costs: Gives the compute precision.
    """
    return _bytes(layer.saved[recompute], layer, loads, ranks, costs)


def offloaded_bytes(layer: LayerSpec, loads: Loads, ranks: LayerParallelism, costs: CostModel) -> Times:
    """Bytes that one layer saves in host memory under recomputation `offload`; as `saved_activation_bytes`."""
    return _bytes(layer.offloaded, layer, loads, ranks, costs)


def _bytes(saved: SavedActivations, layer: LayerSpec, loads: Loads, ranks: LayerParallelism, costs: CostModel) -> Times:
    elements = (
        saved.split.evaluate(loads) / ranks.tp
        + saved.replicated.evaluate(loads) / ranks.for_layer(layer).sequence_shards
    )
    if layer.routing:
        pair_elements = saved.pair_split.evaluate(loads) / ranks.tp + saved.pair_replicated.evaluate(loads)
        elements = elements + ranks.ep * layer.routing.pairs_per_token(ranks.ep) * pair_elements
    return np.asarray(costs.element_bytes * elements / ranks.cp)


def wgrad_operand_bytes(
    layer: LayerSpec, loads: Loads, ranks: LayerParallelism, recompute: RecomputePolicy, costs: CostModel
) -> Times:
    """Bytes that one layer saves from its backward to its wgrad, where that runs later.

    These are the gradients of the outputs of its matmuls with weights, and their inputs as far as the backward has
    computed them again. Takes the arguments of `saved_activation_bytes`.
    """
    elements = np.zeros(loads.shape[:-1])
    for kernel in layer.kernels:
        if kernel.kind in MATMUL_KINDS and kernel.weights:
            is_divided = kernel.split and kernel.split_by != "rows"
            outputs = kernel.flops.evaluate(loads) / (2 * kernel.inner)
            elements = elements + outputs / (ranks.tp if is_divided else 1)
    again = saved_activation_bytes(layer, loads, ranks, "none", costs) - saved_activation_bytes(
        layer, loads, ranks, recompute, costs
    )
    return np.asarray(costs.element_bytes * elements / ranks.cp + np.maximum(again, 0.0))


def workspace_bytes(
    layer: LayerSpec, loads: Loads, ranks: LayerParallelism, recompute: RecomputePolicy, costs: CostModel
) -> Times:
    """Bytes that are there while a layer runs alone: what it recomputes, and the buffers of its experts' tokens."""
    buffers = _expert_buffers(layer, loads, ranks, costs)
    return buffers if recompute == "none" else buffers + saved_activation_bytes(layer, loads, ranks, "none", costs)


def _expert_buffers(layer: LayerSpec, loads: Loads, ranks: LayerParallelism, costs: CostModel) -> Times:
    """Bytes of the tokens of all expert ranks, of a copy for each pair, and of what is sent, if not all is."""
    if not layer.routing or ranks.ep == 1:
        return np.zeros(loads.shape[:-1])
    token_bytes = costs.element_bytes * layer.output_elements.evaluate(loads) / ranks.cp
    copies = ranks.ep * (1 + layer.routing.pairs_per_token(ranks.ep))
    nodes = expert_nodes(ranks, costs.devices_per_node)
    if chosen_transfer(ranks.expert_transfer, layer.routing, ranks.ep, nodes) == "all_to_all":
        copies += layer.routing.most_ranks(ranks.ep)
    return np.asarray(copies * token_bytes)


class TrainState(NamedTuple):
    """Bytes that a device and its host hold for its parameters during a step.

    Attributes:
        weights: Bytes of weights in compute precision.
        gradients: Bytes of gradients in float32, and of a microbatch's in compute precision.
        optimizer: Bytes of master weights and of the optimizer's state on the device.
        on_host: The same in its host's memory.
    """

    weights: Times
    gradients: Times
    optimizer: Times
    on_host: Times


def train_state(parameters: Elements, trained: Elements, dp: Elements, costs: CostModel) -> TrainState:
    """Bytes of weights, gradients and optimizer state, with the last divided among `dp` ranks (ZeRO-1).

        weights    compute * parameters
        gradients  (gradient + compute) * trained
        optimizer  (master * parameters + moments * trained) / dp, or on_host

    A backward makes the gradients of its microbatch in compute precision before it adds them to the sums in float32.

    Args:
        parameters: Elements of the parameters on a device.
        trained: Elements of the parameters that train.
        dp: Data and context-parallel ranks that hold the same parameters; of experts, the ranks that hold the same
            experts.
        costs: Gives the compute precision and the optimizer.
    """
    optimizer = np.asarray(costs.optimizer.state_bytes(parameters, trained) / dp)
    none = np.zeros_like(optimizer)
    return TrainState(
        np.asarray(costs.element_bytes * parameters),
        np.asarray((GRADIENT_BYTES + costs.element_bytes) * trained),
        *((none, optimizer) if costs.optimizer.on_host else (optimizer, none)),
    )


def train_state_bytes(parameters: Elements, trained: Elements, dp: Elements, costs: CostModel) -> Times:
    """Bytes of weights, gradients and optimizer state on a device; takes the arguments of `train_state`."""
    state = train_state(parameters, trained, dp, costs)
    return state.weights + state.gradients + state.optimizer
