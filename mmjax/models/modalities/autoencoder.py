"""The variational autoencoder of latent diffusion (arXiv 2112.10752): pixels to latents and back."""

import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from configs.architectures import AutoencoderConfig
from mmjax.models.layers.linear import Convolution, GroupNorm, Linear
from mmjax.models.modalities.unet_blocks import FeatureMaps, OutputMaps, ResidualBlock, upsample_nearest
from sharding.axes import Axes

EPSILON = 1e-6
LEAST, MOST = -30.0, 20.0  # of the logarithm of a latent's variance


class Posterior(NamedTuple):
    """What an image's latents are drawn from: a normal distribution for each number."""

    mean: Float[Array, "b z w f"]
    deviation: Float[Array, "b z w f"]


class MapAttention(nnx.Module):
    """Attention of one head over a map, added to it; every tensor rank computes it whole."""

    def __init__(self, width: int, groups: int) -> None:
        self.norm = GroupNorm(width, groups, epsilon=EPSILON)
        self.query, self.key, self.value, self.output = (Linear(width, width, bias=True) for _ in range(4))

    def __call__(self, x: FeatureMaps, axes: Axes) -> FeatureMaps:
        flat = self.norm(x).reshape(x.shape[0], -1, 1, x.shape[-1])
        query, key, value = (project(flat, axes) for project in (self.query, self.key, self.value))
        return x + self.output(jax.nn.dot_product_attention(query, key, value), axes).reshape(x.shape)


class Middle(nnx.Module):
    """Two residual blocks at the coarsest resolution, with attention between them."""

    def __init__(self, width: int, groups: int) -> None:
        self.first = ResidualBlock(width, width, groups, epsilon=EPSILON)
        self.attention = MapAttention(width, groups)
        self.second = ResidualBlock(width, width, groups, epsilon=EPSILON)

    def __call__(self, x: FeatureMaps, axes: Axes) -> FeatureMaps:
        return self.second(self.attention(self.first(x, axes), axes), axes)


class Encoder(nnx.Module):
    """Pixels to means and logarithms of variances."""

    def __init__(self, config: AutoencoderConfig, channels: int) -> None:
        width, both = config.widths[0], 2 * config.latent_channels
        self.enter = Convolution(channels, width)
        shrink, down = [], []
        for level, level_width in enumerate(config.widths):
            if level:
                shrink.append(Convolution(width, width, stride=2, padding=(0, 1)))
            down.append(nnx.List(_blocks(width, level_width, config.blocks, config.groups)))
            width = level_width
        self.shrink, self.down = nnx.List(shrink), nnx.List(down)
        self.middle = Middle(width, config.groups)
        self.leave_norm = GroupNorm(width, config.groups, epsilon=EPSILON)
        self.leave = Convolution(width, both)
        self.quantise = Convolution(both, both, side=1)

    def __call__(self, x: FeatureMaps, axes: Axes) -> OutputMaps:
        x = self.enter(x, axes)
        for level, blocks in enumerate(self.down):
            if level:
                x = self.shrink[level - 1](x, axes)
            for block in blocks:
                x = block(x, axes)
        x = self.middle(x, axes)
        return self.quantise(self.leave(jax.nn.silu(self.leave_norm(x)), axes), axes)


class Decoder(nnx.Module):
    """Latents to pixels."""

    def __init__(self, config: AutoencoderConfig, channels: int) -> None:
        width, latents = config.widths[-1], config.latent_channels
        self.quantise = Convolution(latents, latents, side=1)
        self.enter = Convolution(latents, width)
        self.middle = Middle(width, config.groups)
        grow, up = [], []
        for level in reversed(range(len(config.widths))):
            up.append(nnx.List(_blocks(width, config.widths[level], config.blocks + 1, config.groups)))
            width = config.widths[level]
            if level:
                grow.append(Convolution(width, width))
        self.grow, self.up = nnx.List(grow), nnx.List(up)
        self.leave_norm = GroupNorm(width, config.groups, epsilon=EPSILON)
        self.leave = Convolution(width, channels)

    def __call__(self, x: FeatureMaps, axes: Axes) -> OutputMaps:
        x = self.middle(self.enter(self.quantise(x, axes), axes), axes)
        for number, blocks in enumerate(self.up):
            if number:
                x = self.grow[number - 1](upsample_nearest(x), axes)
            for block in blocks:
                x = block(x, axes)
        return self.leave(jax.nn.silu(self.leave_norm(x)), axes)


class Autoencoder(nnx.Module):
    """Images to distributions of latents, and latents to images."""

    def __init__(self, config: AutoencoderConfig, channels: int) -> None:
        self.scaling_factor = config.scaling_factor
        self.encoder = Encoder(config, channels)
        self.decoder = Decoder(config, channels)

    def encode(self, images: FeatureMaps, axes: Axes) -> Posterior:
        """Of images in [-1, 1]; latents in the scale that the generator denoises."""
        mean, variance = jnp.split(self.encoder(images, axes), 2, axis=-1)
        deviation = jnp.exp(0.5 * jnp.clip(variance, LEAST, MOST))
        return Posterior(self.scaling_factor * mean, self.scaling_factor * deviation)

    def decode(self, latents: FeatureMaps, axes: Axes) -> OutputMaps:
        """Images of latents in the scale of `encode`; a little beyond [-1, 1] here and there."""
        return self.decoder(latents / self.scaling_factor, axes)


def _blocks(inputs: int, outputs: int, count: int, groups: int) -> list[ResidualBlock]:
    widths = [inputs, *[outputs] * count]
    return [ResidualBlock(a, b, groups, epsilon=EPSILON) for a, b in itertools.pairwise(widths)]
