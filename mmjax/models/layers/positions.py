"""Position embeddings without parameters: sinusoidal ones, which embeddings add, and rotary ones, for attention."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Real

from configs.attention.vision_rope import VisionRope


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


def image_grid_sizes(positions: Int[Array, "r p 2"], segments: Int[Array, "r p"]) -> Int[Array, "r p 2"]:
    """Numbers of patch rows and patch columns of the image that each patch belongs to."""
    return jax.vmap(_grid_sizes_of_row)(positions, segments)


def _grid_sizes_of_row(positions: Int[Array, "p 2"], segments: Int[Array, " p"]) -> Int[Array, "p 2"]:
    last = jax.ops.segment_max(positions, segments, num_segments=segments.shape[0] + 1)
    return last[segments] + 1


class Rotation(NamedTuple):
    """Rotation and scale of queries and keys by their positions; the same for every head.

    Attributes:
        cos: Cosines by which pairs of channels are rotated.
        sin: Sines by which pairs of channels are rotated.
        query_scale: Factor of rotated queries; None for none.
        is_rotated: Whether the layer rotates, where the layers of a stack differ in that; None where all do. If not,
            cosines are 1 and sines 0.
    """

    cos: Float[Array, "r s 1 half"]
    sin: Float[Array, "r s 1 half"]
    query_scale: Float[Array, "r s 1 1"] | None = None
    is_rotated: Bool[Array, ""] | None = None


def rotary_cos_sin(
    positions: Real[Array, "r s *half"], frequencies: Float[np.ndarray, " half"], scaling: float = 1.0
) -> Rotation:
    """Computes the cosines and sines of rotary position embedding (arXiv 2104.09864), in float32.

    Args:
        positions: Position of each token, or of each pair of channels of each token.
        frequencies: Angle per position of each pair of channels of a head.
        scaling: Factor on cosines and sines (YaRN's attention scaling).
    """
    pair_positions = positions.reshape(*positions.shape[:2], 1, -1).astype(jnp.float32)  # [r, s, 1, 1 or half]
    angles = pair_positions * frequencies.astype(np.float32)[None, None, None, :]
    return Rotation(scaling * jnp.cos(angles), scaling * jnp.sin(angles))


def rotary_cos_sin_2d(
    positions: Int[Array, "r p 2"], segments: Int[Array, "r p"], head_width: int, rope: VisionRope
) -> Rotation:
    """Computes the rotary embedding of patches in a plane.

    Half of a head's pairs rotate by the patch row, the other half by the patch column. Tokens before the patches of an
    image, at negative positions, are not rotated.

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
    cosines, sines = ([getattr(rotation, part) for rotation in rotations] for part in ("cos", "sin"))
    return Rotation(jnp.concatenate(cosines, axis=-1), jnp.concatenate(sines, axis=-1))


def _patch_coordinates(
    positions: Int[Array, "r p 2"], segments: Int[Array, "r p"], rope: VisionRope
) -> Float[Array, "r p 2"]:
    """Row and column of each patch in the units of the rotary frequencies; 0 at negative positions."""
    index = positions.astype(jnp.float32)
    if rope.coordinates == "centred":
        sizes = image_grid_sizes(positions, segments).astype(jnp.float32)
        index = 2 * jnp.pi * (2 * ((index + 0.5) / sizes) - 1)
    elif rope.coordinates == "number":
        index = index + 1
    elif rope.grid:
        index = index * (rope.grid / image_grid_sizes(positions, segments).astype(jnp.float32))
    return jnp.where(positions < 0, 0.0, index)


def apply_rotary(x: Float[Array, "r s h e"], rotary: Rotation) -> Float[Array, "r s h e"]:
    """Rotates the channel pairs (i, i + half) of every head, the pairing of Llama's published weights.

    Channels after the first 2 * half are left as they are (Phi-4-mini).
    """
    cos, sin = rotary.cos, rotary.sin
    half = cos.shape[-1]
    first, second, rest = jnp.split(x, [half, 2 * half], axis=-1)
    first, second = first.astype(jnp.float32), second.astype(jnp.float32)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)
    return jnp.concatenate([turned, rest], axis=-1) if rest.shape[-1] else turned
