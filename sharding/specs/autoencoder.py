"""A generator's autoencoder as one layer: a step runs its encoder alone, but the weights of both halves are held."""

import math
from collections.abc import Iterator

from configs.architectures import AutoencoderConfig, DenoisingConfig
from sharding.specs.layers.image_kernels import ImageKernel, attention, convolution, group_norm, linear, residual_block
from sharding.specs.layers.layer import LayerSpec, PerLoad, SavedActivations, saved_by_policy


def autoencoder_layer(config: DenoisingConfig, autoencoder: AutoencoderConfig) -> LayerSpec:
    """The autoencoder, counted per image. It is frozen unless its part is named.

    Args:
        config: The generator.
        autoencoder: Its autoencoder.
    """
    pixels = math.prod(config.image_sides)
    encoder = tuple(_encoder(autoencoder, config.channels, pixels))
    both_halves = (*encoder, *_decoder(autoencoder, config.channels, pixels))
    conditions = config.conditions * config.condition_width
    saved = SavedActivations(PerLoad(items=sum(step.saved for step in encoder)))
    inputs = SavedActivations(replicated=PerLoad(items=config.channels * pixels))
    return LayerSpec(
        name="vae",
        part=f"{config.name}_vae",
        kernels=tuple(step.kernel for step in encoder),
        parameters=sum(step.parameters for step in both_halves),
        replicated_parameters=sum(step.replicated for step in both_halves),
        saved=saved_by_policy(saved, inputs),
        output_elements=PerLoad(items=conditions + math.prod(config.latent_shape)),
        frozen_by_default=True,
        sequence_parallel=False,
    )


def _encoder(config: AutoencoderConfig, channels: int, area: int) -> Iterator[ImageKernel]:
    """The kernels in the order of `mmjax.models.modalities.generators.autoencoder.Encoder`."""
    width, moments = config.widths[0], 2 * config.latent_channels
    yield convolution("conv_in", channels, width, area, split=False)
    for level, level_width in enumerate(config.widths):
        if level:
            area //= 4
            yield convolution("downsample", width, width, area, split=False)
        for _ in range(config.blocks):
            yield from residual_block(width, level_width, area)
            width = level_width
    yield from _middle_block(width, area)
    yield group_norm("norm_out", width, area)
    yield convolution("conv_out", width, moments, area, split=False)
    if config.quantise:
        yield convolution("quantise", moments, moments, area, taps=1, split=False)


def _decoder(config: AutoencoderConfig, channels: int, pixels: int) -> Iterator[ImageKernel]:
    """The kernels in the order of `mmjax.models.modalities.generators.autoencoder.Decoder`."""
    area, width, latents = pixels // config.downsampling_factor**2, config.widths[-1], config.latent_channels
    if config.quantise:
        yield convolution("quantise", latents, latents, area, taps=1, split=False)
    yield convolution("conv_in", latents, width, area, split=False)
    yield from _middle_block(width, area)
    for level in reversed(range(len(config.widths))):
        for _ in range(config.blocks + 1):
            yield from residual_block(width, config.widths[level], area)
            width = config.widths[level]
        if level:
            area *= 4
            yield convolution("upsample", width, width, area, split=False)
    yield group_norm("norm_out", width, area)
    yield convolution("conv_out", width, channels, area, split=False)


def _middle_block(width: int, area: int) -> Iterator[ImageKernel]:
    yield from residual_block(width, width, area)
    yield group_norm("norm", width, area)
    yield linear("query_key_value", width, 3 * width, area, bias=True, split=False)
    yield attention("attention", width, width, area, area, split=False)
    yield linear("output", width, width, area, bias=True, split=False)
    yield from residual_block(width, width, area)
