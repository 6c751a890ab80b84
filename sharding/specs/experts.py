"""A transformer block with a mixture of experts: the plain block's spec with its feed-forward layer replaced.

`transformer.py` makes blocks with experts by `with_experts`.
"""

import dataclasses

from configs.modules.backbone import BackboneConfig
from configs.modules.experts import ExpertsConfig
from sharding.expert_transfer import Routing
from sharding.specs.layers.layer import (
    Kernel,
    LayerSpec,
    PerLoad,
    RecomputePolicy,
    SavedActivations,
    expert_combine,
    expert_dispatch,
    expert_matmul,
    matmul,
    memory_bound,
    reduce_scatter,
)

_FEED_FORWARD = ("up", "activation", "down")  # a block with experts has no inner norm in its feed-forward layer


def expert_splits(config: BackboneConfig) -> tuple[tuple[str, int], ...]:
    """The sizes that tensor parallelism divides in feed-forward layers and experts: pairs (name, size)."""
    experts = config.experts
    if experts is None:
        return (("ffn", config.ffn),)
    splits = {
        "ffn": config.ffn if len(config.layers_with_experts) < config.depth else 0,
        "experts.ffn": experts.ffn,
        "experts.shared_ffn": experts.shared_ffn,
        "width": config.width if experts.biases else 0,  # the biases of down
    }
    return tuple((name, size) for name, size in splits.items() if size)


def with_experts(block: LayerSpec, config: BackboneConfig, experts: ExpertsConfig) -> LayerSpec:
    """A block with experts in place of its feed-forward layer.

    Args:
        block: Built from the same configuration, with a gated feed-forward layer without biases.
        config: The backbone's architecture.
        experts: The mixture of experts.
    """
    width, ffn, shared, count = config.width, experts.ffn, experts.shared_ffn, experts.count
    *attention, last_scatter, residual = (kernel for kernel in block.kernels if kernel.name not in _FEED_FORWARD)
    feed_forward_parameters = 3 * width * config.ffn
    return dataclasses.replace(
        block,
        kernels=(*attention, *_kernels(config, experts), last_scatter, residual),
        parameters=block.parameters - feed_forward_parameters + 3 * width * shared,
        replicated_parameters=block.replicated_parameters + _replicated(width, experts),
        expert_parameters=count * (3 * width * ffn + experts.biases * (2 * ffn + width)),
        routing=Routing(count, experts.top_k),
        saved={policy: _saved(policy, saved, config, experts) for policy, saved in block.saved.items()},
    )


def _has_shared_gate(experts: ExpertsConfig) -> bool:
    return experts.shared_gate and experts.shared_ffn > 0


def _replicated(width: int, experts: ExpertsConfig) -> int:
    """Elements of the router, its biases, and the shared expert's gate."""
    router = experts.router
    return experts.count * (width + router.bias + router.selection_bias) + width * _has_shared_gate(experts)


def _kernels(config: BackboneConfig, experts: ExpertsConfig) -> tuple[Kernel, ...]:
    """Kernels from the norm to the sum over tensor ranks: the router, the routed experts, and the shared expert.

    Routed experts have no kernels for FP8: their operands are rounded and multiplied as they are without it.
    """
    width, count, top_k, ffn = config.width, experts.count, experts.top_k, experts.ffn
    return (
        matmul("router", width, count, split=False),
        memory_bound("top_k", 3 * count, split=False),
        expert_dispatch(width, top_k),
        memory_bound("sort_pairs", 2 * top_k * width, split=False),
        expert_matmul("experts_up", width, 2 * ffn, top_k, count),
        *((expert_matmul("experts_up_bias", 1, 2 * ffn, top_k, count),) if experts.biases else ()),
        memory_bound("experts_activation", 3 * ffn * top_k),
        expert_matmul("experts_down", ffn, width, top_k, count, split_by="rows"),
        *((expert_matmul("experts_down_bias", 1, width, top_k, count, split=False),) if experts.biases else ()),
        memory_bound("sum_pairs", 2 * top_k * width, split=False),
        expert_combine(width),
        *(_shared_expert(config, experts) if experts.shared_ffn else ()),
    )


def _shared_expert(config: BackboneConfig, experts: ExpertsConfig) -> tuple[Kernel, ...]:
    width, ffn, fp8 = config.width, experts.shared_ffn, "mlp" in config.fp8
    return (
        matmul("shared_up", width, 2 * ffn, fp8=fp8),
        memory_bound("shared_activation", 3 * ffn),
        matmul("shared_down", ffn, width, split_by="rows", fp8=fp8),
        *((matmul("shared_gate", width, 1, split=False),) if _has_shared_gate(experts) else ()),
        reduce_scatter(width),
    )


def _saved(
    policy: RecomputePolicy, block: SavedActivations, config: BackboneConfig, experts: ExpertsConfig
) -> SavedActivations:
    """Activations that the block saves for a replica's tokens, and for each pair of a token and an expert.

    A rank has room for the pairs of all tokens that its peers may send, and saves it whole.
    """
    if policy in ("offload", "full"):
        return block
    width, selective = config.width, policy == "selective"
    hidden, matrices = (2, 1) if selective else (3, 2)  # of each pair: f-wide activations, and d-wide ones
    matrices -= experts.router.weighted == "inputs"  # of what enters a sum nothing is saved
    shared_output = (width + 1) * _has_shared_gate(experts)  # and the gate's
    return SavedActivations(
        block.split + PerLoad(hidden * (experts.shared_ffn - config.ffn)),
        block.replicated + PerLoad(shared_output + (0 if selective else 2 * experts.count)),
        PerLoad(hidden * experts.ffn),
        PerLoad(matrices * width),
    )
