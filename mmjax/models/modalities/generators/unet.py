"""The conditional U-Net of latent diffusion (arXiv 2112.10752), for images and for spectrograms (2301.12503).

`generator.py` makes its piece and samples by it.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from configs.architectures import UNetConfig
from mmjax.models.layers.feed_forward import MLP
from mmjax.models.layers.linear import Convolution, Linear
from mmjax.models.layers.normalization import GroupNorm
from mmjax.models.modalities.generators.unet_blocks import FeatureMaps, OutputMaps, UNetBlock, upsample_nearest
from sharding.axes import Axes

MAX_PERIOD = 10_000.0  # steps that the slowest wave takes to turn by one radian


def timestep_embedding(time: Float[Array, " b"], width: int) -> Float[Array, "b {width}"]:
    """Sinusoidal embedding of time steps (arXiv 1706.03762), cosines first."""
    half = width // 2
    # Rounded as published models round them: a time of 1000 multiplies the differences.
    exponents = np.float32(-math.log(MAX_PERIOD)) * np.arange(half, dtype=np.float32) / np.float32(half)
    frequencies = np.exp(exponents.astype(np.float64)).astype(np.float32)
    angles = time[:, None] * frequencies[None, :]  # [b, width / 2]
    return jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], axis=-1)


class UNet(nnx.Module):
    """Predicts noise or velocity from noisy images or latents, time steps and conditions.

    Levels count resolutions, 0 being the finest. On the way down every block's output is saved; on the way up it is
    concatenated to the input of the block that mirrors it.
    """

    def __init__(self, config: UNetConfig) -> None:
        """Creates the layers.

        `enter` and `leave` are the first and last convolution, `shrink` and `grow` the convolutions between levels.
        """
        widths, hidden = config.widths, config.widths[0] * 4
        folded_channels = config.latent_shape[-1] * config.patch**2
        self.patch, self.time_width, self.pooled = config.patch, config.widths[0], config.pooled
        self.time = MLP(self.time_width, hidden, hidden, activation="silu")
        self.condition = None if self.pooled == "none" else Linear(config.condition_width, hidden, bias=True)
        self.enter = Convolution(folded_channels, widths[0])
        width = widths[0]
        skip_widths = [width]
        shrink, down, grow, up = [], [], [], []
        for level in range(len(widths)):
            if level:
                shrink.append(Convolution(width, width, stride=2, padding=(1, 1)))
                skip_widths.append(width)
            blocks = []
            for _ in range(config.blocks):
                blocks.append(UNetBlock(width, level, level in config.attention_levels, config))
                width = widths[level]
                skip_widths.append(width)
            down.append(nnx.List(blocks))
        self.middle_in = UNetBlock(width, len(widths) - 1, True, config)
        self.middle_out = UNetBlock(width, len(widths) - 1, False, config)
        for level in reversed(range(len(widths))):
            blocks = []
            for _ in range(config.blocks + 1):
                blocks.append(UNetBlock(width + skip_widths.pop(), level, level in config.attention_levels, config))
                width = widths[level]
            up.append(nnx.List(blocks))
            if level:
                grow.append(Convolution(width, width))
        self.shrink, self.down, self.grow, self.up = map(nnx.List, (shrink, down, grow, up))
        self.leave_norm = GroupNorm(widths[0], config.groups)
        self.leave = Convolution(widths[0], folded_channels, zero=True)

    @jax.named_scope("unet")
    def __call__(
        self, maps: FeatureMaps, time: Float[Array, " b"], conditions: Float[Array, "b q k"], axes: Axes
    ) -> FeatureMaps:
        """Predicts, in the precision of the conditions.

        Args:
            maps: Noisy images or latents.
            time: Time steps, whole or not.
            conditions: Conditions of each image.
            axes: Mesh axes.
        """
        dtype = conditions.dtype
        embedding = jax.nn.silu(self._embed(time, conditions, axes))  # [b, e]
        x = self.enter(space_to_depth(maps.astype(dtype), self.patch), axes)
        skips = [x]
        for level, blocks in enumerate(self.down):
            with jax.named_scope(f"down_{level}"):
                if level:
                    x = self.shrink[level - 1](x, axes)  # half the height and width
                    skips.append(x)
                for block in blocks:
                    x = block(x, embedding, conditions, axes)
                    skips.append(x)
        with jax.named_scope("middle"):
            x = self.middle_in(x, embedding, conditions, axes)
            x = self.middle_out(x, embedding, conditions, axes)
        for number, blocks in enumerate(self.up):
            with jax.named_scope(f"up_{number}"):
                if number:
                    x = self.grow[number - 1](upsample_nearest(x), axes)  # twice the height and width
                for block in blocks:
                    x = block(jnp.concatenate([x, skips.pop()], axis=-1), embedding, conditions, axes)
        return depth_to_space(self.leave(jax.nn.silu(self.leave_norm(x)), axes), self.patch)

    def _embed(self, time: Float[Array, " b"], conditions: Float[Array, "b q k"], axes: Axes) -> Float[Array, "b e"]:
        """Embeds the time and, where the configuration says so, the mean of the conditions."""
        embedding = self.time(timestep_embedding(time, self.time_width).astype(conditions.dtype), axes)
        if self.condition is None:
            return embedding
        pooled = self.condition(jnp.mean(conditions, axis=1), axes)
        return embedding + pooled if self.pooled == "added" else jnp.concatenate([embedding, pooled], axis=-1)


def space_to_depth(images: FeatureMaps, patch: int) -> OutputMaps:
    """Moves the patch x patch pixels of each cell into the channels."""
    b, height, width, channels = images.shape
    cells = images.reshape(b, height // patch, patch, width // patch, patch, channels)
    return cells.transpose(0, 1, 3, 2, 4, 5).reshape(b, height // patch, width // patch, patch * patch * channels)


def depth_to_space(maps: FeatureMaps, patch: int) -> OutputMaps:
    """The inverse of `space_to_depth`."""
    b, height, width, folded = maps.shape
    cells = maps.reshape(b, height, width, patch, patch, folded // patch**2)
    return cells.transpose(0, 1, 3, 2, 4, 5).reshape(b, height * patch, width * patch, folded // patch**2)
