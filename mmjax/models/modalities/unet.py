"""The conditional U-Net of latent diffusion (arXiv 2112.10752), for images and for spectrograms (2301.12503)."""

import math

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from configs.architectures import GeneratorConfig
from mmjax.models.layers.linear import MLP, Convolution, GroupNorm, Linear
from mmjax.models.modalities.unet_blocks import FeatureMaps, OutputMaps, UNetBlock, upsample_nearest
from sharding.axes import Axes

LONGEST = 10_000.0  # steps that the slowest wave takes to turn by one radian


def timestep_embedding(time: Float[Array, " b"], width: int) -> Float[Array, "b {width}"]:
    """Cosines and sines of time steps, as transformers embed positions (arXiv 1706.03762), cosines first."""
    half = width // 2
    frequencies = jnp.exp(jnp.arange(half, dtype=jnp.float32) * (-math.log(LONGEST) / half))
    angles = time[:, None] * frequencies[None, :]
    return jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], axis=-1)


class UNet(nnx.Module):
    """Noised images or latents, time steps and conditions to what is predicted; maps enter folded by `patch`."""

    def __init__(self, config: GeneratorConfig) -> None:
        widths, hidden = config.widths, config.widths[0] * 4
        folded = config.latent_shape[-1] * config.patch**2
        self.patch, self.time_width, self.pooled = config.patch, config.widths[0], config.pooled
        self.time = MLP(self.time_width, hidden, hidden, activation="silu")
        self.condition = None if self.pooled == "none" else Linear(config.condition_width, hidden, bias=True)
        self.enter = Convolution(folded, widths[0])
        kept, width = [widths[0]], widths[0]
        shrink, down, grow, up = [], [], [], []
        for level in range(len(widths)):
            if level:
                shrink.append(Convolution(width, width, stride=2, padding=(1, 1)))
                kept.append(width)
            blocks = []
            for _ in range(config.blocks):
                blocks.append(UNetBlock(width, level, level in config.attention_levels, config))
                width = widths[level]
                kept.append(width)
            down.append(nnx.List(blocks))
        self.middle_in = UNetBlock(width, len(widths) - 1, True, config)
        self.middle_out = UNetBlock(width, len(widths) - 1, False, config)
        for level in reversed(range(len(widths))):
            blocks = []
            for _ in range(config.blocks + 1):
                blocks.append(UNetBlock(width + kept.pop(), level, level in config.attention_levels, config))
                width = widths[level]
            up.append(nnx.List(blocks))
            if level:
                grow.append(Convolution(width, width))
        self.shrink, self.down, self.grow, self.up = map(nnx.List, (shrink, down, grow, up))
        self.leave_norm = GroupNorm(widths[0], config.groups)
        self.leave = Convolution(widths[0], folded, zero=True)

    def __call__(
        self, maps: FeatureMaps, time: Float[Array, " b"], conditions: Float[Array, "b q k"], axes: Axes
    ) -> FeatureMaps:
        """Computes in the precision of the conditions; `time` counts steps, whole or not."""
        dtype = conditions.dtype
        embedding = jax.nn.silu(self._embedding(time, conditions, axes))
        x = self.enter(space_to_depth(maps.astype(dtype), self.patch), axes)
        kept = [x]
        for level, blocks in enumerate(self.down):
            if level:
                x = self.shrink[level - 1](x, axes)
                kept.append(x)
            for block in blocks:
                x = block(x, embedding, conditions, axes)
                kept.append(x)
        x = self.middle_in(x, embedding, conditions, axes)
        x = self.middle_out(x, embedding, conditions, axes)
        for number, blocks in enumerate(self.up):
            if number:
                x = self.grow[number - 1](upsample_nearest(x), axes)
            for block in blocks:
                x = block(jnp.concatenate([x, kept.pop()], axis=-1), embedding, conditions, axes)
        return depth_to_space(self.leave(jax.nn.silu(self.leave_norm(x)), axes), self.patch)

    def _embedding(self, time: Float[Array, " b"], conditions: Float[Array, "b q k"], axes: Axes) -> jax.Array:
        """Of time, and of the mean of the conditions where it is used."""
        embedding = self.time(timestep_embedding(time, self.time_width).astype(conditions.dtype), axes)
        if self.condition is None:
            return embedding
        pooled = self.condition(jnp.mean(conditions, axis=1), axes)
        return embedding + pooled if self.pooled == "added" else jnp.concatenate([embedding, pooled], axis=-1)


def space_to_depth(images: FeatureMaps, patch: int) -> OutputMaps:
    """Moves patch x patch pixels into the channels."""
    b, height, width, channels = images.shape
    cells = images.reshape(b, height // patch, patch, width // patch, patch, channels)
    return cells.transpose(0, 1, 3, 2, 4, 5).reshape(b, height // patch, width // patch, patch * patch * channels)


def depth_to_space(maps: FeatureMaps, patch: int) -> OutputMaps:
    """The inverse of `fold`."""
    b, height, width, folded = maps.shape
    cells = maps.reshape(b, height, width, patch, patch, folded // patch**2)
    return cells.transpose(0, 1, 3, 2, 4, 5).reshape(b, height * patch, width * patch, folded // patch**2)
