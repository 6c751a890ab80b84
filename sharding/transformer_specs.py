"""Encoders and backbones as layers, from the dataclasses that their Flax modules are built from."""

import functools
from typing import Any

from configs.architectures import AudioConfig, BackboneConfig, ModelConfig, VisionConfig
from sharding.block_specs import block_layer, norm_size
from sharding.expert_specs import with_experts
from sharding.layer_spec import Amount, Kept, Kernel, LayerSpec, gather, matmul, memory, same_kept, scatter
from sharding.projector_specs import projector_layer


def encoder_layers(
    config: VisionConfig | AudioConfig, backbone: BackboneConfig
) -> tuple[tuple[LayerSpec, ...], LayerSpec, tuple[LayerSpec, ...]]:
    """What comes before an encoder's stack, one layer of the stack, and what comes after: norm and projector."""
    last = (_norm(config),) if config.last_norm else ()
    after = (*last, projector_layer(config.projector, config, backbone))
    return (embedding_layer(config),), block_layer(config, causal=False), after


def backbone_layers(config: ModelConfig) -> tuple[tuple[LayerSpec, ...], LayerSpec, tuple[LayerSpec, ...]]:
    """The embedding, one layer of the stack, and the last norm with the language head."""
    of = config.backbone
    block = block_layer(of, causal=True)
    return (_embedding(of),), with_experts(block, of) if of.experts else block, (_head(of),)


@functools.singledispatch
def embedding_layer(config: Any) -> LayerSpec:
    """What comes before an encoder's blocks. A new kind registers its own, by the type of its configuration."""
    raise TypeError(f"no embedding is known of a {type(config).__name__}; register one with embedding_layer")


@embedding_layer.register
def _patch_embedding(config: VisionConfig) -> LayerSpec:
    pixels, width, learned = config.patch_width, config.width, config.positions == "learned"
    inputs = Kept(whole=Amount(pixels))
    return LayerSpec(
        "embed",
        config.name,
        (matmul("pixels", pixels, width, split=False), memory("positions", 2 * width, split=False)),
        0,
        pixels * width
        + width * (config.patch_bias + config.class_token * (1 + learned) + config.grid**2 * learned)
        + (norm_size(config, width) if config.pre_norm else 0),
        same_kept(inputs, inputs),
        Amount(width),
        by_position=False,
    )


@embedding_layer.register
def _frame_embedding(config: AudioConfig) -> LayerSpec:
    """Two convolutions over three frames; two frames are one position."""
    mels, width = config.mels, config.width
    kernels = (
        Kernel("first", "convolution", Amount(2 * 2 * 3 * mels * width), Amount(2 * (mels + width)), 3 * mels * width),
        Kernel("second", "convolution", Amount(2 * 3 * width * width), Amount(3 * width), 3 * width * width),
        memory("positions", 2 * width, split=False),
    )
    inputs = Kept(whole=Amount(2 * mels))
    kept = Kept(Amount(4 * width), Amount(2 * mels + width))
    parameters = 3 * width * (mels + width) + width
    kept_by = same_kept(kept, inputs)
    return LayerSpec("embed", config.name, kernels, parameters, width, kept_by, Amount(width), by_position=False)


def _norm(config: VisionConfig | AudioConfig) -> LayerSpec:
    width = config.width
    inputs = Kept(whole=Amount(width))
    kernels = (memory("norm", 2 * width, split=False),)
    return LayerSpec(
        "norm", config.name, kernels, 0, norm_size(config, width), same_kept(inputs, inputs), Amount(width)
    )


def _embedding(config: BackboneConfig) -> LayerSpec:
    width = config.width
    kernels = (memory("lookup", 2 * width), scatter(width))
    nothing = Kept()
    positions = config.longest * width if config.positions == "learned" else 0
    return LayerSpec(
        "embed", config.name, kernels, config.vocabulary * width, positions, same_kept(nothing, nothing), Amount(width)
    )


def _head(config: BackboneConfig) -> LayerSpec:
    """The last norm, the logits in float32 and their loss; with tied embeddings the table counts where it is owned."""
    width, vocabulary = config.width, config.vocabulary
    kernels = (
        memory("norm", 2 * width, split=False),
        gather(width),
        matmul("logits", width, vocabulary),
        memory("loss", 4 * vocabulary),
    )
    inputs = Kept(whole=Amount(width))
    kept = Kept(Amount(2 * vocabulary), Amount(2 * width))
    parameters = 0 if config.tie_embeddings else vocabulary * width
    # What leaves for the generators are single positions: nothing beside the activations.
    return LayerSpec(
        "head", config.name, kernels, parameters, norm_size(config, width), same_kept(kept, inputs), Amount()
    )
