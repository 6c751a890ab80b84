"""Where a token stands, as vectors: fixed waves, and learned tables that serve images of any size."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from mmjax.models.layers import weight

CUBIC = -0.75  # the parameter a of bicubic interpolation, as PyTorch has it


def sine_positions(positions: Int[Array, "r p *axes"], width: int) -> Float[Array, "r p {width}"]:
    """Fixed embedding (arXiv 1706.03762) of positions on a line or in a plane."""
    return time_waves(positions, width) if positions.ndim == 2 else plane_waves(positions, width)


def time_waves(positions: Int[Array, "r p"], width: int) -> Float[Array, "r p {width}"]:
    """Whisper's fixed position embedding: sines, then cosines, of wavelengths from 2 pi to 20,000 pi positions."""
    frequencies = 10000.0 ** (-jnp.arange(width // 2, dtype=jnp.float32) / (width // 2 - 1))
    angles = positions.astype(jnp.float32)[..., None] * frequencies[None, None, :]
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


def plane_waves(positions: Int[Array, "r p 2"], width: int) -> Float[Array, "r p {width}"]:
    """Half of the width for the row, half for the column, at wavelengths from 2 pi to 2,000 pi patches."""
    frequencies = 1000.0 ** (-jnp.arange(width // 4, dtype=jnp.float32) / (width // 4))
    angles = positions.astype(jnp.float32)[..., None] * frequencies[None, None, None, :]
    waves = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)
    return waves.reshape(*positions.shape[:2], width)


class PlaneTable(nnx.Module):
    """A learned vector for every cell of a square, interpolated for images of another size (bicubic, as in ViT)."""

    def __init__(self, side: int, width: int) -> None:
        self.side = side
        self.table = weight((side, side, width), (None, None, None), 0.02)

    def __call__(self, positions: Int[Array, "r p 2"], segments: Int[Array, "r p"]) -> Float[Array, "r p d"]:
        """Vectors of the patches of packed images, each of which says its row and column in its image."""
        extents = image_extents(positions, segments)
        taps, weights = _taps(positions, extents, self.side)
        table = self.table[...]
        found = jnp.zeros((*segments.shape, table.shape[-1]), table.dtype)
        for row in range(4):
            for column in range(4):
                share = weights[..., 0, row] * weights[..., 1, column]
                at = table[taps[..., 0, row], taps[..., 1, column]]
                found = found + share[..., None].astype(table.dtype) * at
        return found


def image_extents(positions: Int[Array, "r p 2"], segments: Int[Array, "r p"]) -> Int[Array, "r p 2"]:
    """Rows and columns of the image that each patch is of."""
    return jax.vmap(_extents)(positions, segments)


def _extents(positions: Int[Array, "p 2"], segments: Int[Array, " p"]) -> Int[Array, "p 2"]:
    highest = jax.ops.segment_max(positions, segments, num_segments=segments.shape[0] + 1)
    return highest[segments] + 1


def _taps(
    positions: Int[Array, "r p 2"], extents: Int[Array, "r p 2"], side: int
) -> tuple[Int[Array, "r p 2 4"], Float[Array, "r p 2 4"]]:
    """The four cells about each position's place in the table, and their bicubic weights; along rows and columns."""
    place = (positions.astype(jnp.float32) + 0.5) * (side / extents.astype(jnp.float32)) - 0.5
    first = jnp.floor(place)
    beyond = place - first
    offsets = jnp.arange(-1, 3)
    distance = jnp.abs(beyond[..., None] - offsets[None, None, None, :].astype(jnp.float32))
    cells = jnp.clip(first[..., None].astype(jnp.int32) + offsets[None, None, None, :], 0, side - 1)
    return cells, _cubic(distance)


def _cubic(distance: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Keys's kernel: piecewise cubic, 1 at 0, 0 at all other whole numbers."""
    near = (CUBIC + 2) * distance**3 - (CUBIC + 3) * distance**2 + 1
    far = CUBIC * (distance**3 - 5 * distance**2 + 8 * distance - 4)
    return jnp.where(distance <= 1, near, far)
