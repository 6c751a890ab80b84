"""The front of a vision transformer over packed patches of images of any size (NaViT's packing, arXiv 2307.06304)."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from configs.architectures import VisionConfig
from mmjax.models.interface import Batch, Channels
from mmjax.models.layers import Linear
from sharding.axes import Axes


def sine_positions(positions: Int[Array, "r p 2"], width: int) -> Float[Array, "r p {width}"]:
    """Fixed 2-D position embedding: half of the width for the row, half for the column (arXiv 1706.03762)."""
    frequencies = 1000.0 ** (-jnp.arange(width // 4, dtype=jnp.float32) / (width // 4))
    angles = positions.astype(jnp.float32)[..., None] * frequencies[None, None, None, :]
    waves = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)
    return waves.reshape(*positions.shape[:2], width)


def normalised(
    patches: Float[Array, "r p c"], mean: tuple[float, ...], deviation: tuple[float, ...]
) -> Float[Array, "r p c"]:
    """(pixel - mean) / deviation per channel; the channels of a pixel are adjacent in a patch."""
    pixels = patches.shape[-1] // len(mean)
    mean, deviation = (jnp.tile(jnp.array(values), pixels)[None, None] for values in (mean, deviation))
    return (patches - mean) / deviation


class PatchEmbedding(nnx.Module):
    """Pixels of a patch, and where it stands in its image, to the encoder's width."""

    reads = ("patches", "positions")

    def __init__(self, config: VisionConfig) -> None:
        self.width = config.width
        self.normal = (config.pixel_mean, config.pixel_deviation)
        self.pixels = Linear(config.patch_width, config.width, bias=True)

    def __call__(self, inputs: Channels, batch: Batch, axes: Axes) -> Float[Array, "r p d"]:
        """Reads `patches` [r, p, c] and `positions` [r, p, 2]; takes no inputs from other modules."""
        pixels = normalised(batch["patches"], *self.normal)
        x = self.pixels(pixels.astype(self.pixels.kernel[...].dtype), axes)
        return x + sine_positions(batch["positions"], self.width).astype(x.dtype)
