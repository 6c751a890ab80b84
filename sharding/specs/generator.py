"""Generators as layers, from the configurations that their Flax modules are built from, counted per image.

`module_graph` calls `generator_spec` for every generator.
"""

import functools
import math
from collections.abc import Iterator

from configs.architectures import BackboneConfig, DiTConfig, GeneratorConfig, UNetConfig
from configs.modules.generator import unregistered_generator
from sharding.specs.autoencoder import autoencoder_layer
from sharding.specs.diffusion_transformer import dit_block_runs, dit_embedding, dit_head, dit_splits
from sharding.specs.layers.image_kernels import (
    ImageKernel,
    attention,
    convolution,
    elementwise,
    group_norm,
    image_layer,
    linear,
    norm,
    residual_block,
)
from sharding.specs.layers.layer import (
    Kernel,
    LayerSpec,
    PerLoad,
    SavedActivations,
    matmul_of_rows,
    saved_by_policy,
)
from sharding.specs.layers.module_spec import ModuleSpec


@functools.singledispatch
def generator_spec(config: GeneratorConfig, backbone: BackboneConfig) -> ModuleSpec:
    """The costs of a generator. A new kind registers its own function, by the type of its configuration."""
    raise unregistered_generator(config)


def image_generator_spec(
    config: GeneratorConfig,
    backbone: BackboneConfig,
    layer: LayerSpec,
    *,
    before: tuple[LayerSpec, ...] = (),
    tensor_splits: tuple[tuple[str, int], ...] = (),
) -> ModuleSpec:
    """The costs of a generator that is one layer behind the output projector.

    Args:
        config: The generator.
        backbone: The language model, from whose width the projector maps.
        layer: The generator with its loss.
        before: Layers between projector and generator.
        tensor_splits: The sizes that tensor parallelism divides besides the projector: pairs (name, size).
    """
    return ModuleSpec(
        config.name,
        layer_count=1,
        inputs=(backbone.name,),
        tensor_splits=(*tensor_splits, ("projector width", 2 * config.condition_width)),
        divisible=False,
        leading_layers=(_projector(config, backbone), *before),
        layer=layer,
        trailing_layers=(),
        extra_input=PerLoad(items=config.conditions * backbone.width),
    )


@generator_spec.register
def _unet_spec(config: UNetConfig, backbone: BackboneConfig) -> ModuleSpec:
    autoencoder = (autoencoder_layer(config, config.autoencoder),) if config.autoencoder else ()
    return image_generator_spec(config, backbone, _unet(config), before=autoencoder, tensor_splits=_unet_splits(config))


@generator_spec.register
def _dit_spec(config: DiTConfig, backbone: BackboneConfig) -> ModuleSpec:
    autoencoder = (autoencoder_layer(config, config.autoencoder),) if config.autoencoder else ()
    (layer, _), *later_runs = dit_block_runs(config)
    return ModuleSpec(
        config.name,
        config.layer_count,
        inputs=(backbone.name,),
        tensor_splits=(*dit_splits(config), ("projector width", 2 * config.condition_width)),
        leading_layers=(_projector(config, backbone), *autoencoder, dit_embedding(config)),
        layer=layer,
        later_runs=tuple(later_runs),
        trailing_layers=(dit_head(config),),
        extra_input=PerLoad(items=config.conditions * backbone.width),
    )


def _unet_splits(config: UNetConfig) -> tuple[tuple[str, int], ...]:
    widths = tuple((f"widths[{level}]", width) for level, width in enumerate(config.widths))
    heads = tuple((f"heads[{level}]", config.heads(level)) for level in config.all_attention_levels)
    autoencoder = (("autoencoder.groups", config.autoencoder.groups),) if config.autoencoder else ()
    return (*widths, ("groups", config.groups), *heads, *autoencoder)


def _projector(config: GeneratorConfig, backbone: BackboneConfig) -> LayerSpec:
    width, hidden, out, count = backbone.width, 2 * config.condition_width, config.condition_width, config.conditions

    rows = PerLoad(items=count)
    input_norm = Kernel("norm", "memory", activations=PerLoad(items=2 * width * count), split=False)
    inputs = SavedActivations(replicated=PerLoad(items=width * count))
    saved = SavedActivations(PerLoad(items=2 * hidden * count), PerLoad(items=2 * width * count))
    return LayerSpec(
        name="projector",
        part=f"{config.name}_projector",
        kernels=(
            input_norm,
            matmul_of_rows("up", width, hidden, rows),
            matmul_of_rows("down", hidden, out, rows, split_by="rows"),
        ),
        parameters=width * hidden + hidden + hidden * out,
        replicated_parameters=2 * width + out,
        saved=saved_by_policy(saved, inputs),
        output_elements=PerLoad(items=out * count),
        sequence_parallel=False,
    )


def _unet(config: UNetConfig) -> LayerSpec:
    inputs = math.prod(config.latent_shape) + config.conditions * config.condition_width
    return image_layer(config, "unet", _unet_kernels(config), inputs)


def _unet_kernels(config: UNetConfig) -> Iterator[ImageKernel]:
    """The kernels in the order of `mmjax.models.modalities.generators.unet.UNet`."""
    height, side, channels = config.latent_shape
    widths, hidden, folded = config.widths, 4 * config.widths[0], channels * config.patch**2
    area = height * side // config.patch**2
    yield linear("time_up", widths[0], hidden, 1, bias=True)
    yield linear("time_down", hidden, hidden, 1, bias=True, split_by_rows=True)
    if config.pooled != "none":
        yield linear("condition", config.condition_width, hidden, 1, bias=True, split=False)
    yield convolution("conv_in", folded, widths[0], area, split=False)
    skip_widths, width = [widths[0]], widths[0]
    for level, level_width in enumerate(widths):
        if level:
            area //= 4
            yield convolution("downsample", width, width, area, split=False)
            skip_widths.append(width)
        for _ in range(config.blocks):
            yield from _block(config, width, level, area, level in config.attention_levels)
            width = level_width
            skip_widths.append(width)
    coarsest = len(widths) - 1
    yield from _block(config, width, coarsest, area, attends=True)
    yield from _block(config, width, coarsest, area, attends=False)
    for level in reversed(range(len(widths))):
        for _ in range(config.blocks + 1):
            width += skip_widths.pop()
            yield elementwise("concatenate", 2 * width * area)
            yield from _block(config, width, level, area, level in config.attention_levels)
            width = widths[level]
        if level:
            yield elementwise("repeat", 5 * width * area)
            area *= 4
            yield convolution("upsample", width, width, area, split=False)
    yield group_norm("norm_out", widths[0], area)
    yield convolution("conv_out", widths[0], folded, area, split=False)


def transformer_blocks(config: UNetConfig) -> Iterator[tuple[int, int]]:
    """(width, area) of every transformer block: in each level with attention, down and up, and in the middle."""
    height, side, _ = config.latent_shape
    for level, width in enumerate(config.widths):
        area = height * side // config.patch**2 // 4**level
        count = (level in config.attention_levels) * (2 * config.blocks + 1) + (level == len(config.widths) - 1)
        yield from [(width, area)] * count


def _block(config: UNetConfig, inputs: int, level: int, area: int, attends: bool) -> Iterator[ImageKernel]:
    """A residual block, followed by a transformer block where the level has attention."""
    yield from residual_block(inputs, config.widths[level], area, config.embedding_width)
    if attends:
        yield from _transformer_block(config, level, area)


def _transformer_block(config: UNetConfig, level: int, area: int) -> Iterator[ImageKernel]:
    width = config.widths[level]
    yield group_norm("norm", width, area)
    yield _projection(config, "input_proj", width, area)
    yield norm("self_norm", width, area)
    yield from _self_attention(config, level, area)
    yield norm("second_norm", width, area)
    if config.second_attention == "map":
        yield from _self_attention(config, level, area)
    else:
        yield from _cross_attention(config, level, area)
    yield norm("mlp_norm", width, area)
    yield linear("gate_up", width, 8 * width, area, bias=True)
    yield elementwise("activation", 12 * width * area)
    yield linear("down", 4 * width, width, area, bias=True, split_by_rows=True)
    yield _projection(config, "output_proj", width, area)
    yield elementwise("residuals", 4 * 3 * width * area)  # of both attentions, the MLP and the whole block


def _projection(config: UNetConfig, name: str, width: int, area: int) -> ImageKernel:
    if config.linear_projection:
        return linear(name, width, width, area, bias=True, split=False)
    return convolution(name, width, width, area, taps=1, split=False)


def _self_attention(config: UNetConfig, level: int, area: int) -> Iterator[ImageKernel]:
    width, head_width = config.widths[level], config.head_widths[level]
    yield linear("query_key_value", width, 3 * width, area)
    yield attention("self_attention", width, head_width, area, area)
    yield linear("output", width, width, area, bias=True, split_by_rows=True)


def _cross_attention(config: UNetConfig, level: int, area: int) -> Iterator[ImageKernel]:
    width, head_width = config.widths[level], config.head_widths[level]
    condition_width, conditions = config.condition_width, config.conditions
    yield linear("query", width, width, area)
    yield linear("key_value", condition_width, 2 * width, conditions)
    yield attention("cross_attention", width, head_width, area, conditions)
    yield linear("output", width, width, area, bias=True, split_by_rows=True)
