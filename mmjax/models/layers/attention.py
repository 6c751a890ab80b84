"""Attention over packed rows: several samples, and several branches of a sample, share a row."""

import jax
from flax import nnx
from jaxtyping import Array, Float

from configs.transformer import TransformerConfig
from mmjax.models.layers.linear import Linear, column_parallel_projections
from mmjax.models.layers.normalization import Norm, build_norm
from mmjax.models.layers.positions import RotaryCosSin, apply_rotary
from pallas_kernels.packed_attention import SegmentMask, packed_attention
from sharding.axes import Axes


class Attention(nnx.Module):
    """Grouped-query attention, softmax(Q Kᵀ / √e) V per head, with the heads split over the tensor axes.

    Q = rotary(norm(x W_query)), K = rotary(norm(y W_key)) and V = y W_value, where y is x itself or, for
    cross-attention, another source. Norms of queries and keys, rotary positions and a norm before the output
    projection are optional.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        kv_heads: int = 0,
        source_width: int = 0,
        biases: tuple[str, ...] = (),
        query_norm: Norm | None = None,
        key_norm: Norm | None = None,
        inner_norm: Norm | None = None,
    ) -> None:
        """Creates the projections query `[d, h e]`, key and value `[c, k e]`, and output `[h e, d]`.

        Args:
            width: Width d of the queries' source and of the output.
            heads: Query heads h, of width e = d / h.
            kv_heads: Key-value heads k; 0 for as many as query heads.
            source_width: Width c of the source of keys and values; 0 for d.
            biases: Which of query, key, value and output have a bias.
            query_norm: Norm of the queries, over each head `[..., e]` or, if it is split, over all heads at once.
            key_norm: Norm of the keys, likewise.
            inner_norm: Norm before the output projection.
        """
        self.head_width = width // heads
        kv_width = self.head_width * (kv_heads or heads)
        source = source_width or width
        self.query = Linear(width, width, split="columns", bias="query" in biases)
        self.key = Linear(source, kv_width, split="columns", bias="key" in biases)
        self.value = Linear(source, kv_width, split="columns", bias="value" in biases)
        self.query_norm, self.key_norm, self.inner_norm = query_norm, key_norm, inner_norm
        self.output = Linear(width, width, split="rows", bias="output" in biases)

    @jax.named_scope("attention")
    def __call__(
        self,
        x: Float[Array, "r q d"],
        axes: Axes,
        *,
        mask: SegmentMask | None = None,
        rotary: RotaryCosSin | None = None,
        source: Float[Array, "r t c"] | None = None,
    ) -> Float[Array, "r q d"]:
        """Attends from x to a source.

        Args:
            x: Activations; q are this rank's positions where `axes.sequence` divides them, else all s.
            axes: Mesh axes.
            mask: Which positions see which; None for all of them.
            rotary: Rotation of queries and keys; None for none.
            source: What keys and values are made of; None for x.
        """
        query, key, value = self.project_query_key_value(x, source, axes, rotary)
        if mask is None:
            heads_output = jax.nn.dot_product_attention(query, key, value)  # [r, s, h, e]
        else:
            heads_output = packed_attention(query, key, value, mask)  # [r, s, h, e]
        return self.project_output(heads_output, axes)

    def project_query_key_value(
        self,
        x: Float[Array, "r q d"],
        source: Float[Array, "r t c"] | None,
        axes: Axes,
        rotary: RotaryCosSin | None = None,
    ) -> tuple[Float[Array, "r s h e"], Float[Array, "r t k e"], Float[Array, "r t k e"]]:
        """Queries of x, and keys and values of the source (None for x), at all positions, normed and rotated."""
        if source is None:
            query, key, value = column_parallel_projections((self.query, self.key, self.value), x, axes)
        else:
            query = self.query(x, axes)
            key, value = column_parallel_projections((self.key, self.value), source, axes)
        query = self._split_heads(query, self.query_norm, axes)  # [r, s, h e] -> [r, s, h, e]
        key = self._split_heads(key, self.key_norm, axes)  # [r, t, k e] -> [r, t, k, e]
        value = self._split_heads(value, None, axes)  # [r, t, k e] -> [r, t, k, e]
        if rotary is not None:
            query, key = apply_rotary(query, rotary), apply_rotary(key, rotary)
        return query, key, value

    def _split_heads(self, x: jax.Array, norm: Norm | None, axes: Axes) -> Float[Array, "r s h e"]:
        """Splits the channels into heads; a norm that is split spans all heads and comes before, else after."""
        if norm is not None and norm.split is not None:
            return norm(x, axes).reshape(*x.shape[:2], -1, self.head_width)
        x = x.reshape(*x.shape[:2], -1, self.head_width)
        return x if norm is None else norm(x)

    def project_output(self, heads_output: Float[Array, "r s h e"], axes: Axes) -> Float[Array, "r q d"]:
        """Joins the heads and applies the output projection."""
        joined = heads_output.reshape(*heads_output.shape[:2], -1)  # [r, s, h e]
        return self.output(joined if self.inner_norm is None else self.inner_norm(joined, axes), axes)


def build_attention(config: TransformerConfig) -> Attention:
    """The attention that the configuration describes."""
    inner_norm = build_norm(config, config.width, split="tensor") if "attention" in config.inner_norms else None
    return Attention(
        config.width,
        config.heads,
        kv_heads=config.kv_heads,
        biases=config.biases,
        query_norm=_query_key_norm(config, config.width),
        key_norm=_query_key_norm(config, config.kv_width),
        inner_norm=inner_norm,
    )


def _query_key_norm(config: TransformerConfig, width: int) -> Norm | None:
    """A norm with one scale for all heads ("head"), or with a scale for each channel of all heads ("width")."""
    if config.qk_norm == "head":
        return build_norm(config, config.head_width)
    if config.qk_norm == "width":
        return build_norm(config, width, split="tensor")
    return None
