"""A transformer block with a mixture of experts: the plain block's spec with its feed-forward layer replaced."""

import dataclasses

from configs.backbone import BackboneConfig
from configs.transformer import ExpertsConfig
from sharding.specs.layer import (
    Kernel,
    LayerSpec,
    PerLoad,
    RecomputePolicy,
    SavedActivations,
    expert_all_gather,
    expert_matmul,
    expert_reduce_scatter,
    matmul,
    memory_bound,
    reduce_scatter,
)

_FEED_FORWARD = ("up", "activation", "down")  # a block with experts has no inner norm in its feed-forward layer


def expert_splits(experts: ExpertsConfig) -> tuple[tuple[str, int], ...]:
    """What tensor parallelism divides: pairs (name, size)."""
    shared = (("experts.shared_ffn", experts.shared_ffn),) if experts.shared_ffn else ()
    return (("experts.ffn", experts.ffn), *shared)


def with_experts(block: LayerSpec, config: BackboneConfig, experts: ExpertsConfig) -> LayerSpec:
    """A block with experts in place of its feed-forward layer.

    Args:
        block: Built from the same configuration, with a gated feed-forward layer without biases.
        config: The backbone's architecture.
        experts: The mixture of experts.
    """
    width, ffn, shared = config.width, experts.ffn, experts.shared_ffn
    *attention, last_scatter, residual = (kernel for kernel in block.kernels if kernel.name not in _FEED_FORWARD)
    feed_forward_parameters = 3 * width * config.ffn
    return dataclasses.replace(
        block,
        kernels=(*attention, *_kernels(width, experts), last_scatter, residual),
        parameters=block.parameters - feed_forward_parameters + 3 * width * shared,
        replicated_parameters=block.replicated_parameters + width * experts.count + width * (shared > 0),
        expert_parameters=3 * experts.count * width * ffn,
        saved={policy: _saved(policy, saved, config, experts) for policy, saved in block.saved.items()},
    )


def _kernels(width: int, experts: ExpertsConfig) -> tuple[Kernel, ...]:
    """From the norm to the sum over tensor ranks: the router, the routed experts, and the shared expert."""
    count, top_k, ffn = experts.count, experts.top_k, experts.ffn
    return (
        matmul("router", width, count, split=False),
        memory_bound("top_k", 3 * count, split=False),
        expert_all_gather(width),
        memory_bound("dispatch", 2 * top_k * width, split=False),
        expert_matmul("experts_up", width, 2 * ffn, top_k, count),
        memory_bound("experts_activation", 3 * ffn * top_k),
        expert_matmul("experts_down", ffn, width, top_k, count, split_by="rows"),
        memory_bound("combine", 2 * top_k * width, split=False),
        expert_reduce_scatter(width),
        *(_shared_expert(width, experts.shared_ffn) if experts.shared_ffn else ()),
    )


def _shared_expert(width: int, ffn: int) -> tuple[Kernel, ...]:
    return (
        matmul("shared_up", width, 2 * ffn),
        memory_bound("shared_activation", 3 * ffn),
        matmul("shared_down", ffn, width, split_by="rows"),
        matmul("shared_gate", width, 1, split=False),
        reduce_scatter(width),
    )


def _saved(
    policy: RecomputePolicy, block: SavedActivations, config: BackboneConfig, experts: ExpertsConfig
) -> SavedActivations:
    """What the block saves of a replica's tokens, each routed `top_k` times.

    The layer of today gathers the tokens of all expert ranks and saves the (token, expert) pairs of all of them, `ep`
    times as much; counted here is what an all-to-all of tokens would save.
    """
    hidden_growth = experts.top_k * experts.ffn + experts.shared_ffn - config.ffn
    routed_inputs = experts.top_k * config.width
    if policy in ("offload", "full"):
        return block
    if policy == "selective":
        split, replicated = PerLoad(2 * hidden_growth), PerLoad(routed_inputs + experts.count)
    else:
        split, replicated = PerLoad(3 * hidden_growth), PerLoad(2 * routed_inputs + 2 * experts.count)
    return SavedActivations(block.split + split, block.replicated + replicated)
