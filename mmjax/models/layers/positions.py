"""Position embeddings: sinusoidal, learned tables interpolated for images of any size, and rotary."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int, Real

from configs.vision_rope import VisionRope
from mmjax.models.layers.linear import normal_parameter

CUBIC = -0.75  # the parameter a of bicubic interpolation, as in PyTorch


def sinusoidal_positions(positions: Int[Array, "r p *axes"], width: int) -> Float[Array, "r p {width}"]:
    """Fixed embedding (arXiv 1706.03762) of positions along a line, `[r, p]`, or in a plane, `[r, p, 2]`."""
    embed = sinusoidal_positions_1d if positions.ndim == 2 else sinusoidal_positions_2d
    return embed(positions, width)


def sinusoidal_positions_1d(positions: Int[Array, "r p"], width: int) -> Float[Array, "r p {width}"]:
    """Whisper's fixed embedding: sines, then cosines, with wavelengths from 2π to 20,000π positions."""
    frequencies = 10000.0 ** (-jnp.arange(width // 2, dtype=jnp.float32) / (width // 2 - 1))
    angles = positions.astype(jnp.float32)[..., None] * frequencies[None, None, :]  # [r, p, width / 2]
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


def sinusoidal_positions_2d(positions: Int[Array, "r p 2"], width: int) -> Float[Array, "r p {width}"]:
    """Fixed embedding of (row, column): half of the width each, with wavelengths from 2π to 2,000π patches."""
    frequencies = 1000.0 ** (-jnp.arange(width // 4, dtype=jnp.float32) / (width // 4))
    angles = positions.astype(jnp.float32)[..., None] * frequencies[None, None, None, :]  # [r, p, 2, width / 4]
    waves = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)
    return waves.reshape(*positions.shape[:2], width)


class LearnedPositions2D(nnx.Module):
    """A learned vector for every cell of a square grid, bicubically interpolated for images of other sizes (ViT)."""

    def __init__(self, side: int, width: int) -> None:
        """Creates the table, `[side, side, width]`."""
        self.side = side
        self.table = normal_parameter((side, side, width), (None, None, None), 0.02)

    def __call__(self, positions: Int[Array, "r p 2"], segments: Int[Array, "r p"]) -> Float[Array, "r p d"]:
        """Embeds the patches of packed images.

        Args:
            positions: Row and column of each patch in its image.
            segments: Number of the image within the row that each patch belongs to.
        """
        cells, weights = _bicubic_taps(positions, image_grid_sizes(positions, segments), self.side)
        table = self.table[...]
        embedding = jnp.zeros((*segments.shape, table.shape[-1]), table.dtype)  # [r, p, d]
        for row in range(4):
            for column in range(4):
                weight = weights[..., 0, row] * weights[..., 1, column]  # [r, p]
                cell = table[cells[..., 0, row], cells[..., 1, column]]  # [r, p, d]
                embedding = embedding + weight[..., None].astype(table.dtype) * cell
        return embedding


def image_grid_sizes(positions: Int[Array, "r p 2"], segments: Int[Array, "r p"]) -> Int[Array, "r p 2"]:
    """Numbers of patch rows and patch columns of the image that each patch belongs to."""
    return jax.vmap(_grid_sizes_of_row)(positions, segments)


def _grid_sizes_of_row(positions: Int[Array, "p 2"], segments: Int[Array, " p"]) -> Int[Array, "p 2"]:
    last = jax.ops.segment_max(positions, segments, num_segments=segments.shape[0] + 1)
    return last[segments] + 1


def _bicubic_taps(
    positions: Int[Array, "r p 2"], grid_sizes: Int[Array, "r p 2"], side: int
) -> tuple[Int[Array, "r p 2 4"], Float[Array, "r p 2 4"]]:
    """The four nearest table cells along rows and along columns, and their interpolation weights."""
    coordinates = (positions.astype(jnp.float32) + 0.5) * (side / grid_sizes.astype(jnp.float32)) - 0.5
    nearest = jnp.floor(coordinates)
    fraction = coordinates - nearest  # [r, p, 2]
    offsets = jnp.arange(-1, 3)
    distances = jnp.abs(fraction[..., None] - offsets[None, None, None, :].astype(jnp.float32))  # [r, p, 2, 4]
    cells = jnp.clip(nearest[..., None].astype(jnp.int32) + offsets[None, None, None, :], 0, side - 1)
    return cells, _cubic_kernel(distances)


def _cubic_kernel(distance: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Keys's piecewise cubic kernel: 1 at distance 0 and 0 at every other whole number."""
    near = (CUBIC + 2) * distance**3 - (CUBIC + 3) * distance**2 + 1
    far = CUBIC * (distance**3 - 5 * distance**2 + 8 * distance - 4)
    return jnp.where(distance <= 1, near, far)


RotaryCosSin = tuple[Float[Array, "r s 1 half"], Float[Array, "r s 1 half"]]
"""Cosines and sines by which the channel pairs of queries and keys are rotated; the same for every head."""


def rotary_cos_sin(
    positions: Real[Array, "r s *half"], frequencies: Float[np.ndarray, " half"], scaling: float = 1.0
) -> RotaryCosSin:
    """Cosines and sines of rotary position embedding (arXiv 2104.09864), in float32.

    Args:
        positions: Position of each token, or of each pair of channels of each token.
        frequencies: Angle per position of each pair of channels of a head.
        scaling: Factor on cosines and sines (YaRN's attention scaling).
    """
    of_pairs = positions.reshape(*positions.shape[:2], 1, -1).astype(jnp.float32)  # [r, s, 1, 1 or half]
    angles = of_pairs * frequencies.astype(np.float32)[None, None, None, :]
    return scaling * jnp.cos(angles), scaling * jnp.sin(angles)


def rotary_cos_sin_2d(
    positions: Int[Array, "r p 2"], segments: Int[Array, "r p"], head_width: int, rope: VisionRope
) -> RotaryCosSin:
    """Rotary embedding of patches in a plane.

    Half of a head's pairs rotate by the patch row, the other half by the patch column. What precedes the patches of an
    image, at negative positions, is not rotated.

    Args:
        positions: Row and column of each patch in its image.
        segments: Number of the image within the row that each patch belongs to.
        head_width: Width e of a head.
        rope: Coordinates and frequencies.
    """
    coordinates = _patch_coordinates(positions, segments, rope)
    rotations = [
        rotary_cos_sin(coordinates[:, :, axis], frequencies)
        for axis, frequencies in enumerate(rope.axis_frequencies(head_width))
    ]
    cosines, sines = zip(*rotations, strict=True)
    return jnp.concatenate(cosines, axis=-1), jnp.concatenate(sines, axis=-1)


def _patch_coordinates(
    positions: Int[Array, "r p 2"], segments: Int[Array, "r p"], rope: VisionRope
) -> Float[Array, "r p 2"]:
    """Row and column of each patch in the units of the rotary frequencies; 0 at negative positions."""
    index = positions.astype(jnp.float32)
    if rope.coordinates == "centred":
        sizes = image_grid_sizes(positions, segments).astype(jnp.float32)
        index = 2 * jnp.pi * (2 * ((index + 0.5) / sizes) - 1)
    elif rope.grid:
        index = index * (rope.grid / image_grid_sizes(positions, segments).astype(jnp.float32))
    return jnp.where(positions < 0, 0.0, index)


def apply_rotary(x: Float[Array, "r s h e"], rotary: RotaryCosSin) -> Float[Array, "r s h e"]:
    """Rotates the channel pairs (i, i + e/2) of every head, the pairing of Llama's published weights."""
    cos, sin = rotary
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)  # [r, s, h, e / 2] each
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)
