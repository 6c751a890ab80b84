"""Attention over packed rows: several samples, and several branches of a sample, share a row."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Real

from configs.rope import rotary_frequencies
from mmjax.models.layers import Linear, project
from pallas_kernels.packed_attention import Packing, packed_attention
from sharding.axes import Axes

Rotation = tuple[Float[Array, "r s 1 half"], Float[Array, "r s 1 half"]]


def rotation(
    positions: Real[Array, "r s"], frequencies: Float[np.ndarray, " half"], magnitude: float = 1.0
) -> Rotation:
    """Cosines and sines of rotary position embedding (arXiv 2104.09864) of one head's pairs, in float32."""
    angles = positions.astype(jnp.float32)[:, :, None, None] * frequencies.astype(np.float32)[None, None, None, :]
    return magnitude * jnp.cos(angles), magnitude * jnp.sin(angles)


def plane_rotation(positions: Real[Array, "r p 2"], width: int, base: float) -> Rotation:
    """Half of a head's pairs turned by the row, half by the column (EVA-02, arXiv 2303.11331)."""
    frequencies = rotary_frequencies(width // 2, base)
    cosines, sines = zip(*(rotation(positions[:, :, axis], frequencies) for axis in (0, 1)), strict=True)
    return jnp.concatenate(cosines, axis=-1), jnp.concatenate(sines, axis=-1)


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
        kv_heads: int = 0,
        source_width: int = 0,
        biases: tuple[str, ...] = (),
        query_norm: nnx.Module | None = None,
        key_norm: nnx.Module | None = None,
        inner_norm: nnx.Module | None = None,
    ) -> None:
        """What attention is made of.

        Args:
            width, heads: Of the queries and of the output.
            kv_heads: Of keys and values; 0 for as many.
            source_width: Where keys and values come from; 0 for the same.
            biases: Which of query, key, value and output have one.
            query_norm, key_norm: Over a head `[..., e]` or, where their scale is wider, over all heads at once.
            inner_norm: Before the output projection.
        """
        self.head_width = width // heads
        narrow = self.head_width * (kv_heads or heads)
        source = source_width or width
        self.query = Linear(width, width, split="columns", bias="query" in biases)
        self.key = Linear(source, narrow, split="columns", bias="key" in biases)
        self.value = Linear(source, narrow, split="columns", bias="value" in biases)
        self.query_norm, self.key_norm, self.inner_norm = query_norm, key_norm, inner_norm
        self.output = Linear(width, width, split="rows", bias="output" in biases)

    def __call__(
        self,
        x: Float[Array, "r q d"],
        axes: Axes,
        *,
        packing: Packing | None = None,
        rotary: Rotation | None = None,
        source: Float[Array, "r t c"] | None = None,
    ) -> Float[Array, "r q d"]:
        """Attends from x to `source` (default x itself), all of it or what `packing` says; `rotary` turns both."""
        heads = self.project(x, source, axes, rotary)
        return self.leave(packed_attention(*heads, packing) if packing else jax.nn.dot_product_attention(*heads), axes)

    def project(
        self, x: Float[Array, "r q d"], source: Float[Array, "r t c"] | None, axes: Axes, rotary: Rotation | None = None
    ) -> tuple[Float[Array, "r s h e"], Float[Array, "r t k e"], Float[Array, "r t k e"]]:
        """Queries, and keys and values of `source` (default x itself), by head, normed and turned, at all positions."""
        if source is None:
            query, key, value = project((self.query, self.key, self.value), x, axes)
        else:
            query, (key, value) = self.query(x, axes), project((self.key, self.value), source, axes)
        query, key = self._heads(query, self.query_norm, axes), self._heads(key, self.key_norm, axes)
        value = self._heads(value, None, axes)
        if rotary is not None:
            query, key = rotate(query, rotary), rotate(key, rotary)
        return query, key, value

    def _heads(self, x: jax.Array, norm: nnx.Module | None, axes: Axes) -> Float[Array, "r s h e"]:
        across = norm is not None and norm.split is not None  # over all heads, which ranks divide
        x = norm(x, axes) if across else x
        x = x.reshape(*x.shape[:2], -1, self.head_width)
        return x if norm is None or across else norm(x)

    def leave(self, seen: Float[Array, "r s h e"], axes: Axes) -> Float[Array, "r q d"]:
        """What the heads have seen, through the output projection."""
        seen = seen.reshape(*seen.shape[:2], -1)
        return self.output(seen if self.inner_norm is None else self.inner_norm(seen, axes), axes)
