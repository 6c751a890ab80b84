"""A block whose feed-forward layer is a mixture of experts, as a layer: what becomes of the plain block's."""

import dataclasses

from configs.backbone import BackboneConfig
from configs.experts import ExpertsConfig
from sharding.layer_spec import (
    Amount,
    Kept,
    Kernel,
    LayerSpec,
    expert_gather,
    expert_matmul,
    expert_scatter,
    matmul,
    memory,
    scatter,
)

_PLAIN = ("up", "activation", "down")  # a block with experts has no inner norms in its feed-forward layer


def expert_splits(config: ExpertsConfig) -> tuple[tuple[str, int], ...]:
    """What tensor parallelism divides: (what it is, its size)."""
    shared = (("experts.shared_ffn", config.shared_ffn),) if config.shared_ffn else ()
    return (("experts.ffn", config.ffn), *shared)


def with_experts(block: LayerSpec, config: BackboneConfig) -> LayerSpec:
    """The block with experts in place of its feed-forward layer.

    Args:
        block: Of the same configuration, with a gated feed-forward layer without biases.
        config: Its architecture, which has experts.
    """
    width, experts = config.width, config.experts
    ffn, shared = experts.ffn, experts.shared_ffn
    *before, last = (kernel for kernel in block.kernels if kernel.name not in _PLAIN)
    plain = 3 * width * config.ffn
    return dataclasses.replace(
        block,
        kernels=(*before, *_kernels(width, experts), last),
        parameters=block.parameters - plain + 3 * width * shared,
        whole_parameters=block.whole_parameters + width * experts.count + width * (shared > 0),
        expert_parameters=3 * experts.count * width * ffn,
        kept={name: _kept(name, of, config) for name, of in block.kept.items()},
    )


def _kernels(width: int, experts: ExpertsConfig) -> tuple[Kernel, ...]:
    """What stands between the norm and the sum over tensor ranks: the router, the experts, and what all tokens pass."""
    count, top, ffn, shared = experts.count, experts.top, experts.ffn, experts.shared_ffn
    always = (
        matmul("shared_up", width, 2 * shared),
        memory("shared_activation", 3 * shared),
        matmul("shared_down", shared, width),
        matmul("shared_gate", width, 1, split=False),
        scatter(width),
    )
    return (
        matmul("router", width, count, split=False),
        memory("choice", 3 * count, split=False),
        expert_gather(width),
        memory("to_experts", 2 * top * width, split=False),
        expert_matmul("experts_up", width, 2 * ffn, top, count),
        memory("experts_activation", 3 * ffn * top),
        expert_matmul("experts_down", ffn, width, top, count),
        memory("from_experts", 2 * top * width, split=False),
        expert_scatter(width),
        *(always if shared else ()),
    )


def _kept(recompute: str, block: Kept, config: BackboneConfig) -> Kept:
    """Of an instance's tokens, each `top` times.

    Gathering the tokens of all expert ranks, as the layer does today, keeps room for the pairs of all of them, `ep`
    times as much; what is here is what an exchange of tokens keeps.
    """
    experts = config.experts
    wide, shared = experts.top * experts.ffn, experts.shared_ffn
    if recompute == "full":
        return block
    if recompute == "selective":
        split = Amount(2 * (wide + shared - config.ffn))
        return Kept(block.split + split, block.whole + Amount(experts.top * config.width + experts.count))
    split = Amount(3 * (wide + shared - config.ffn))
    return Kept(block.split + split, block.whole + Amount(2 * experts.top * config.width + 2 * experts.count))
