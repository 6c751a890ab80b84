"""Attention over packed rows: several samples, and several branches of a sample, share a row."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from mmjax.models.layers import Linear
from sharding.axes import Axes

Rotation = tuple[Float[Array, "r s 1 half"], Float[Array, "r s 1 half"]]


def segment_mask(segments: Int[Array, "r p"]) -> Bool[Array, "r 1 p p"]:
    """Each position sees its own segment, both ways (encoders)."""
    return (segments[:, :, None] == segments[:, None, :])[:, None]


def branch_mask(segments: Int[Array, "r s"], branches: Int[Array, "r s"]) -> Bool[Array, "r 1 s s"]:
    """Each position sees what stands before it in its segment: the trunk (branch 0) and its own branch.

    So several questions hang behind one image, encoded once, and no answer leaks into another question.
    """
    order = jnp.arange(segments.shape[1])
    earlier = (order[None, :] <= order[:, None])[None]
    visible = (branches[:, None, :] == 0) | (branches[:, None, :] == branches[:, :, None])
    return ((segments[:, :, None] == segments[:, None, :]) & visible & earlier)[:, None]


def rotation(positions: Int[Array, "r s"], width: int, base: float) -> Rotation:
    """Cosines and sines of rotary position embedding (arXiv 2104.09864) for heads of one width, in float32."""
    frequencies = base ** (-jnp.arange(0, width, 2, dtype=jnp.float32) / width)
    angles = positions.astype(jnp.float32)[:, :, None, None] * frequencies[None, None, None, :]
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x: Float[Array, "r s h e"], by: Rotation) -> Float[Array, "r s h e"]:
    """Rotates the pairs (i, i + e/2) of every head, as Llama's published weights have them."""
    cos, sin = by
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


class Attention(nnx.Module):
    """Grouped-query attention; heads are split over the tensor axes. Keys and values may come from elsewhere."""

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        source_width: int | None = None,
        bias: bool = False,
    ) -> None:
        """Queries from `width`, keys and values from `source_width` (default: the same)."""
        self.head_width = width // heads
        narrow = self.head_width * (kv_heads or heads)
        source = source_width or width
        self.query = Linear(width, width, split="columns", bias=bias)
        self.key = Linear(source, narrow, split="columns", bias=bias)
        self.value = Linear(source, narrow, split="columns", bias=bias)
        self.output = Linear(width, width, split="rows", bias=bias)

    def __call__(
        self,
        x: Float[Array, "r s d"],
        axes: Axes,
        *,
        mask: Bool[Array, "r 1 s t"] | None = None,
        rotary: Rotation | None = None,
        source: Float[Array, "r t c"] | None = None,
    ) -> Float[Array, "r s d"]:
        """Attends from x to `source` (default x itself) where `mask` allows; `rotary` turns queries and keys."""
        source = x if source is None else source

        def heads(projected: jax.Array) -> jax.Array:
            return projected.reshape(*projected.shape[:2], -1, self.head_width)

        query, key, value = (
            heads(project(of, axes)) for project, of in ((self.query, x), (self.key, source), (self.value, source))
        )
        if rotary is not None:
            query, key = rotate(query, rotary), rotate(key, rotary)
        seen = jax.nn.dot_product_attention(query, key, value, mask=mask)
        return self.output(seen.reshape(*seen.shape[:2], -1), axes)
