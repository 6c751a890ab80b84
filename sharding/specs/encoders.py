"""Encoders as layers, from the configurations that their Flax modules are built from.

`module_graph` calls `encoder_spec` for every encoder.
"""

import dataclasses
import functools

from configs.architectures import AudioConfig, BackboneConfig, EncoderConfig, VisionConfig
from configs.modules.encoders import unregistered_encoder
from sharding.specs.layers.attention_runs import attention_runs
from sharding.specs.layers.layer import (
    Kernel,
    LayerSpec,
    PerLoad,
    SavedActivations,
    matmul,
    memory_bound,
    saved_by_policy,
)
from sharding.specs.layers.local_attention import local_attention
from sharding.specs.layers.module_spec import ModuleSpec
from sharding.specs.projectors import projector_splits, projector_with_taps
from sharding.specs.transformer import block_layer, norm_parameters

_FRAMES_PER_POSITION = 2  # of audio: the stride of its second convolution


@functools.singledispatch
def encoder_spec(config: EncoderConfig, backbone: BackboneConfig) -> ModuleSpec:
    """The costs of an encoder. A new kind registers its own function, by the type of its configuration."""
    raise unregistered_encoder(config)


def transformer_encoder_spec(
    config: EncoderConfig,
    backbone: BackboneConfig,
    embedding: LayerSpec,
    values_per_position: int = 1,
    *,
    rotary: bool = False,
) -> ModuleSpec:
    """The costs of an encoder that is a stack of blocks.

    Args:
        config: The encoder.
        backbone: The language model, to whose width the encoder's projector maps.
        embedding: The layer before the blocks.
        values_per_position: Values that become one position.
        rotary: Whether attention rotates queries and keys by their positions.
    """
    block = _with_taps(block_layer(config, causal=False, rotary=rotary), config)
    (layer, _), *later_runs = attention_runs(block, config, 0, config.depth)
    kv_heads = (("kv_heads", config.kv_heads),) if config.kv_heads else ()
    final_norm = (_norm(config),) if config.final_norm else ()
    return ModuleSpec(
        config.name,
        config.depth,
        tensor_splits=(
            ("heads", config.heads), *kv_heads, ("ffn", config.ffn),
            *projector_splits(config.projector, config, backbone),
            *(projector_splits(config.tap_projector, config, backbone) if config.tapped_layers else ()),
        ),
        leading_layers=(_with_taps(embedding, config),),
        layer=layer,
        later_runs=tuple(later_runs),
        local=local_attention(config),
        trailing_layers=(
            *(_with_taps(norm, config) for norm in final_norm), projector_with_taps(config, backbone),
        ),
        values_per_position=values_per_position,
        values_per_slot=values_per_position * config.positions_per_token,
    )  # fmt: skip


def _with_taps(layer: LayerSpec, config: EncoderConfig) -> LayerSpec:
    """A layer that hands on the outputs of tapped layers too; where layers are computed again, it saves them as inputs.

    See `mmjax.models.modalities.deepstack`.
    """
    channels = len(config.tapped_layers) * config.width
    if not channels:
        return layer
    inputs = SavedActivations(replicated=PerLoad(channels * (layer.name == "blocks")))
    return dataclasses.replace(
        layer,
        kernels=(*layer.kernels, memory_bound("taps", 2 * (config.width + channels), split=False)),
        saved={policy: saved if policy == "none" else saved.plus(inputs) for policy, saved in layer.saved.items()},
        output_elements=layer.output_elements + PerLoad(channels),
    )


def linear_embedding_layer(config: EncoderConfig, value_width: int, vectors: int = 1) -> LayerSpec:
    """An embedding that projects values to the encoder's width and adds positions.

    Args:
        config: The encoder.
        value_width: Numbers in a value, of which each position has one.
        vectors: Learned vectors of the encoder's width besides the kernel: 1 for a bias.
    """
    width = config.width
    inputs = SavedActivations(replicated=PerLoad(value_width))
    return LayerSpec(
        name="embed",
        part=config.name,
        kernels=(matmul("values", value_width, width, split=False), memory_bound("positions", 2 * width, split=False)),
        parameters=0,
        replicated_parameters=width * (value_width + vectors),
        saved=saved_by_policy(inputs, inputs),
        output_elements=PerLoad(width),
        sequence_parallel=False,
    )


@encoder_spec.register
def _vision(config: VisionConfig, backbone: BackboneConfig) -> ModuleSpec:
    return transformer_encoder_spec(config, backbone, _patch_embedding(config), rotary=config.rope is not None)


@encoder_spec.register
def _audio(config: AudioConfig, backbone: BackboneConfig) -> ModuleSpec:
    return transformer_encoder_spec(config, backbone, _frame_embedding(config), _FRAMES_PER_POSITION)


def _patch_embedding(config: VisionConfig) -> LayerSpec:
    learned = config.positions == "learned"
    vectors = config.patch_bias + config.class_token * (1 + learned) + config.registers + config.grid**2 * learned
    layer = linear_embedding_layer(config, config.patch_width, vectors)
    input_norm = norm_parameters(config, config.width) if config.input_norm else 0
    layer = dataclasses.replace(layer, replicated_parameters=layer.replicated_parameters + input_norm)
    return _with_matmul_of_table(layer, config) if learned and config.interpolation.endswith("antialiased") else layer


def _with_matmul_of_table(layer: LayerSpec, config: VisionConfig) -> LayerSpec:
    """An embedding whose antialiased position table is weighted by one matmul, for which the weights are saved."""
    cells = config.grid**2
    inputs = SavedActivations(replicated=PerLoad(config.patch_width))
    saved = SavedActivations(replicated=PerLoad(config.patch_width + cells))
    kernel = matmul("position_table", cells, config.width, split=False)
    return dataclasses.replace(layer, kernels=(*layer.kernels, kernel), saved=saved_by_policy(saved, inputs))


def _frame_embedding(config: AudioConfig) -> LayerSpec:
    """Two convolutions with kernels of 3 frames; the second has stride 2, so that two frames become one position."""
    mels, width = config.mels, config.width
    first_weights, second_weights = 3 * mels * width, 3 * width * width
    kernels = (
        Kernel(
            "first",
            "convolution",
            PerLoad(2 * 2 * first_weights),
            PerLoad(2 * (mels + width)),
            weights=first_weights,
            inner=3 * mels,
            outer=width,
        ),
        Kernel(
            "second",
            "convolution",
            PerLoad(2 * second_weights),
            PerLoad(3 * width),
            weights=second_weights,
            inner=3 * width,
            outer=width,
            split_by="rows",
        ),
        memory_bound("positions", 2 * width, split=False),
    )
    inputs = SavedActivations(replicated=PerLoad(2 * mels))
    saved = SavedActivations(PerLoad(4 * width), PerLoad(2 * mels + width))
    return LayerSpec(
        name="embed",
        part=config.name,
        kernels=kernels,
        parameters=first_weights + second_weights + width,
        replicated_parameters=width,
        saved=saved_by_policy(saved, inputs),
        output_elements=PerLoad(width),
        sequence_parallel=False,
    )


def _norm(config: EncoderConfig) -> LayerSpec:
    """The norm behind the blocks; positions that are averaged before it need nothing saved for that."""
    width, averages = config.width, config.width / config.pool
    inputs = SavedActivations(replicated=PerLoad(averages))
    pooling = (memory_bound("pooling", width + averages, split=False),) if config.pool > 1 else ()
    return LayerSpec(
        name="norm",
        part=config.name,
        kernels=(*pooling, memory_bound("norm", 2 * averages, split=False)),
        parameters=0,
        replicated_parameters=norm_parameters(config, width),
        saved=saved_by_policy(inputs, SavedActivations(replicated=PerLoad(width))),
        output_elements=PerLoad(averages),
        sequence_parallel=config.pool == 1,
    )
