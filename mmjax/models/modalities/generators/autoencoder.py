"""The variational autoencoder of latent diffusion (arXiv 2112.10752): pixels to latents and back.

`denoising.LatentSampler` encodes images by it, and sampling decodes latents.
"""

import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from configs.architectures import AutoencoderConfig
from mmjax.models.layers.linear import Convolution, Linear
from mmjax.models.layers.normalization import GroupNorm
from mmjax.models.modalities.generators.unet_blocks import FeatureMaps, OutputMaps, ResidualBlock, upsample_nearest
from pallas_kernels.packed_attention import full_attention
from sharding.axes import Axes

EPSILON = 1e-6
MIN_LOG_VARIANCE, MAX_LOG_VARIANCE = -30.0, 20.0


class Posterior(NamedTuple):
    """The normal distribution of an image's latents.

    Attributes:
        mean: Mean of each latent.
        std: Standard deviation of each latent.
    """

    mean: Float[Array, "b z w f"]
    std: Float[Array, "b z w f"]


class MapAttention(nnx.Module):
    """x + attention(norm(x)) with one head over a map; every tensor rank computes it whole."""

    def __init__(self, width: int, groups: int) -> None:
        """Creates the norm and the four projections."""
        self.norm = GroupNorm(width, groups, epsilon=EPSILON)
        self.query, self.key, self.value, self.output = (Linear(width, width, bias=True) for _ in range(4))

    @jax.named_scope("attention")
    def __call__(self, x: FeatureMaps, axes: Axes) -> FeatureMaps:
        """Attends among the pixels of each map."""
        pixels = self.norm(x).reshape(x.shape[0], -1, 1, x.shape[-1])  # [b, y x, 1, c]
        query, key, value = (projection(pixels, axes) for projection in (self.query, self.key, self.value))
        return x + self.output(full_attention(query, key, value), axes).reshape(x.shape)


class MiddleBlock(nnx.Module):
    """Two residual blocks at the coarsest resolution, with attention between them."""

    def __init__(self, width: int, groups: int) -> None:
        """Creates the layers."""
        self.first = ResidualBlock(width, width, groups, epsilon=EPSILON)
        self.attention = MapAttention(width, groups)
        self.second = ResidualBlock(width, width, groups, epsilon=EPSILON)

    def __call__(self, x: FeatureMaps, axes: Axes) -> FeatureMaps:
        """Applies the block."""
        return self.second(self.attention(self.first(x, axes), axes), axes)


class LatentEncoder(nnx.Module):
    """Encodes pixels to means and log-variances of latents."""

    def __init__(self, config: AutoencoderConfig, channels: int) -> None:
        """Creates the layers.

        `enter` and `leave` are the first and last 3 x 3 convolution, `shrink` the convolutions between levels, and
        `quantise` a 1 x 1 convolution (diffusers' `quant_conv`; it quantises nothing).
        """
        width, outputs = config.widths[0], 2 * config.latent_channels
        self.enter = Convolution(channels, width)
        shrink, down = [], []
        for level, level_width in enumerate(config.widths):
            if level:
                shrink.append(Convolution(width, width, stride=2, padding=(0, 1)))
            down.append(nnx.List(_residual_blocks(width, level_width, config.blocks, config.groups)))
            width = level_width
        self.shrink, self.down = nnx.List(shrink), nnx.List(down)
        self.middle = MiddleBlock(width, config.groups)
        self.leave_norm = GroupNorm(width, config.groups, epsilon=EPSILON)
        self.leave = Convolution(width, outputs)
        self.quantise = Convolution(outputs, outputs, side=1) if config.quantise else None

    @jax.named_scope("encode")
    def __call__(self, x: FeatureMaps, axes: Axes) -> OutputMaps:
        """Encodes images; means and log-variances are concatenated along the channels."""
        x = self.enter(x, axes)
        for level, blocks in enumerate(self.down):
            if level:
                x = self.shrink[level - 1](x, axes)  # half the height and width
            for block in blocks:
                x = block(x, axes)
        x = self.middle(x, axes)
        moments = self.leave(jax.nn.silu(self.leave_norm(x)), axes)
        return moments if self.quantise is None else self.quantise(moments, axes)


class LatentDecoder(nnx.Module):
    """Decodes latents to pixels."""

    def __init__(self, config: AutoencoderConfig, channels: int) -> None:
        """Creates the layers, which are named as in `LatentEncoder`; `grow` are the convolutions between levels."""
        width, latents = config.widths[-1], config.latent_channels
        self.quantise = Convolution(latents, latents, side=1) if config.quantise else None
        self.enter = Convolution(latents, width)
        self.middle = MiddleBlock(width, config.groups)
        grow, up = [], []
        for level in reversed(range(len(config.widths))):
            up.append(nnx.List(_residual_blocks(width, config.widths[level], config.blocks + 1, config.groups)))
            width = config.widths[level]
            if level:
                grow.append(Convolution(width, width))
        self.grow, self.up = nnx.List(grow), nnx.List(up)
        self.leave_norm = GroupNorm(width, config.groups, epsilon=EPSILON)
        self.leave = Convolution(width, channels)

    @jax.named_scope("decode")
    def __call__(self, x: FeatureMaps, axes: Axes) -> OutputMaps:
        """Decodes latents."""
        x = x if self.quantise is None else self.quantise(x, axes)
        x = self.middle(self.enter(x, axes), axes)
        for number, blocks in enumerate(self.up):
            if number:
                x = self.grow[number - 1](upsample_nearest(x), axes)  # twice the height and width
            for block in blocks:
                x = block(x, axes)
        return self.leave(jax.nn.silu(self.leave_norm(x)), axes)


class Autoencoder(nnx.Module):
    """Encodes images to distributions of latents, and decodes latents to images."""

    def __init__(self, config: AutoencoderConfig, channels: int) -> None:
        """Creates encoder and decoder."""
        self.scaling_factor, self.shift = config.scaling_factor, config.shift
        self.encoder = LatentEncoder(config, channels)
        self.decoder = LatentDecoder(config, channels)

    @jax.named_scope("autoencoder")
    def encode(self, images: FeatureMaps, axes: Axes) -> Posterior:
        """Returns the distribution of the latents of images in [-1, 1], in the scale of the generator."""
        mean, log_variance = jnp.split(self.encoder(images, axes), 2, axis=-1)
        std = jnp.exp(0.5 * jnp.clip(log_variance, MIN_LOG_VARIANCE, MAX_LOG_VARIANCE))
        return Posterior(self.scaling_factor * (mean - self.shift), self.scaling_factor * std)

    @jax.named_scope("autoencoder")
    def decode(self, latents: FeatureMaps, axes: Axes) -> OutputMaps:
        """Decodes latents in the scale of `encode` to images; a few pixels may be slightly outside [-1, 1]."""
        return self.decoder(latents / self.scaling_factor + self.shift, axes)


def _residual_blocks(inputs: int, outputs: int, count: int, groups: int) -> list[ResidualBlock]:
    widths = [inputs, *[outputs] * count]
    return [ResidualBlock(before, after, groups, epsilon=EPSILON) for before, after in itertools.pairwise(widths)]
