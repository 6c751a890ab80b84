"""A generator's autoencoder as one layer: in training its encoder alone computes, but both halves are held."""

import math
from collections.abc import Iterator

from configs.architectures import AutoencoderConfig, GeneratorConfig
from sharding.specs.image_kernels import ImageKernel, attention, convolution, linear, norm, residual_block
from sharding.specs.layer import LayerSpec, PerLoad, SavedActivations, saved_by_policy


def autoencoder_layer(config: GeneratorConfig) -> LayerSpec:
    """Counted per image; frozen unless it is named."""
    of = config.autoencoder
    pixels = math.prod(config.image_sides)
    encoder = tuple(_encoder(of, config.channels, pixels))
    held = (*encoder, *_decoder(of, config.channels, pixels))
    conditions = config.conditions * config.condition_width
    kept = SavedActivations(PerLoad(items=sum(step.saved for step in encoder)))
    return LayerSpec(
        "vae",
        f"{config.name}_vae",
        tuple(step.kernel for step in encoder),
        sum(step.parameters for step in held),
        sum(step.replicated for step in held),
        saved_by_policy(kept, SavedActivations(replicated=PerLoad(items=config.channels * pixels))),
        PerLoad(items=conditions + math.prod(config.latent_shape)),
        frozen_by_default=True,
        sequence_parallel=False,
    )


def _encoder(of: AutoencoderConfig, channels: int, area: int) -> Iterator[ImageKernel]:
    """Kernels in the order of `mmjax.models.modalities.autoencoder.Encoder`."""
    width, both = of.widths[0], 2 * of.latent_channels
    yield convolution("enter", channels, width, area, split=False)
    for level, level_width in enumerate(of.widths):
        if level:
            area //= 4
            yield convolution("shrink", width, width, area, split=False)
        for _ in range(of.blocks):
            yield from residual_block(width, level_width, area)
            width = level_width
    yield from _middle(width, area)
    yield norm("leave_norm", width, area)
    yield convolution("leave", width, both, area, split=False)
    yield convolution("quantise", both, both, area, taps=1, split=False)


def _decoder(of: AutoencoderConfig, channels: int, pixels: int) -> Iterator[ImageKernel]:
    """Kernels in the order of `mmjax.models.modalities.autoencoder.Decoder`."""
    area, width, latents = pixels // of.downsampling_factor**2, of.widths[-1], of.latent_channels
    yield convolution("quantise", latents, latents, area, taps=1, split=False)
    yield convolution("enter", latents, width, area, split=False)
    yield from _middle(width, area)
    for level in reversed(range(len(of.widths))):
        for _ in range(of.blocks + 1):
            yield from residual_block(width, of.widths[level], area)
            width = of.widths[level]
        if level:
            area *= 4
            yield convolution("grow", width, width, area, split=False)
    yield norm("leave_norm", width, area)
    yield convolution("leave", width, channels, area, split=False)


def _middle(width: int, area: int) -> Iterator[ImageKernel]:
    yield from residual_block(width, width, area)
    yield norm("norm", width, area)
    yield linear("query_key_value", width, 3 * width, area, bias=True, split=False)
    yield attention("attention", width, area, area, split=False)
    yield linear("output", width, width, area, bias=True, split=False)
    yield from residual_block(width, width, area)
