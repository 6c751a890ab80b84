"""Blocks whose attention is global and blocks whose attention is local, as runs of equal layers.

The specs of encoders and backbones with local attention in some layers are built from these runs.
"""

import dataclasses
import itertools

from configs.architectures import BackboneConfig, EncoderConfig
from sharding.specs.layers.layer import ZERO, Kernel, LayerSpec, PerLoad
from sharding.specs.layers.local_attention import is_local_layer


def attention_runs(
    block: LayerSpec, config: EncoderConfig | BackboneConfig, first: int, count: int
) -> tuple[tuple[LayerSpec, int], ...]:
    """The runs of equal layers among blocks that differ in their attention alone: pairs (layer, count).

    All are one stack of the module, and have its name; runs of blocks unlike its first block have a longer one.

    Args:
        block: A block with global attention.
        config: The module.
        first: Number of the first block among all blocks of the module.
        count: Number of the blocks.
    """
    first_is_local, runs = is_local_layer(config, first), []
    for is_local, layers in itertools.groupby(range(first, first + count), lambda layer: is_local_layer(config, layer)):
        layer = with_local_attention(block) if is_local else block
        if is_local != first_is_local:
            layer = dataclasses.replace(layer, name=f"{block.name}_{'local' if is_local else 'global'}")
        runs.append((layer, len(list(layers))))
    return tuple(runs)


def with_local_attention(block: LayerSpec) -> LayerSpec:
    """A block that computes the pairs of local attention, and nothing of the squares."""
    kernels = (_local(kernel) if kernel.kind == "attention" else kernel for kernel in block.kernels)
    return dataclasses.replace(block, kernels=tuple(kernels))


def _local(kernel: Kernel) -> Kernel:
    """The FLOPs of attention, and the masked ones, per pair; causal attention counts half of the squares."""
    per_pair = kernel.flops.squared_lengths + kernel.masked_flops.squared_lengths
    masked = PerLoad() if kernel.masked_flops == ZERO else PerLoad(squared_lengths=per_pair, local_pairs=-per_pair)
    return dataclasses.replace(kernel, flops=PerLoad(local_pairs=per_pair), masked_flops=masked)
