"""Attention over packed rows: several samples, and several branches of a sample, share a row.

Blocks of encoders, backbones and generators have an `Attention`; its kernel is `pallas_kernels.packed_attention`.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from configs.modules.transformer import TransformerConfig
from mmjax.models.layers.linear import Linear, column_parallel_projections, constant_parameter
from mmjax.models.layers.normalization import Norm, build_norm, normalise_mean_square
from mmjax.models.layers.positions import Rotation, apply_rotary
from pallas_kernels.packed_attention.api import Mask, full_attention, packed_attention
from sharding.axes import Axes


class Attention(nnx.Module):
    """Grouped-query attention, softmax(scale Q Kᵀ) V per head, with the heads split over the tensor axes.

    Q = rotary(norm(x W_query)), K = rotary(norm(y W_key)) and V = y W_value, where y is x itself or, for
    cross-attention, a context. Norms of queries and keys, rotary positions and a norm before the output
    projection are optional.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        kv_heads: int = 0,
        attention_width: int = 0,
        context_width: int = 0,
        biases: tuple[str, ...] = (),
        query_norm: Norm | None = None,
        key_norm: Norm | None = None,
        inner_norm: Norm | None = None,
        score_scale: float = 0.0,
        score_softcap: float = 0.0,
        sinks: bool = False,
        rotated_norm: float | None = None,
    ) -> None:
        """Creates the projections query `[d, h e]`, key and value `[c, k e]`, and output `[h e, d]`.

        Args:
            width: Width d of the input x and of the output.
            heads: Query heads h, of width e.
            kv_heads: Key-value heads k; 0 for as many as query heads.
            attention_width: Width h e of all query heads together; 0 for d.
            context_width: Width c of the input of the key and value projections; 0 for d.
            biases: Which of query, key, value and output have a bias.
            query_norm: Norm of the queries, over each head `[..., e]` or, if it is tensor-sharded, over all heads.
            key_norm: Norm of the keys, over each head or over all heads in the same way.
            inner_norm: Norm before the output projection.
            score_scale: Factor of the products of queries and keys; 0 for 1 / sqrt(e).
            score_softcap: Soft cap of the scores (`packed_attention`); 0 for none.
            sinks: Whether there are learned scores `[h]` for attending to nothing (`packed_attention`).
            rotated_norm: Epsilon of a norm, without parameters, of each head of rotated queries and keys; None for no
                such norm.
        """
        query_width = attention_width or width
        self.head_width = query_width // heads
        self.score_scale, self.score_softcap = score_scale or self.head_width**-0.5, score_softcap
        kv_width = self.head_width * (kv_heads or heads)
        context = context_width or width
        self.query = Linear(width, query_width, split="columns", bias="query" in biases)
        self.key = Linear(context, kv_width, split="columns", bias="key" in biases)
        self.value = Linear(context, kv_width, split="columns", bias="value" in biases)
        self.query_norm, self.key_norm, self.inner_norm = query_norm, key_norm, inner_norm
        self.rotated_norm = rotated_norm
        self.sinks = constant_parameter(0.0, heads, "tensor") if sinks else None
        self.output = Linear(query_width, width, split="rows", bias="output" in biases)

    @jax.named_scope("attention")
    def __call__(
        self,
        x: Float[Array, "r q d"],
        axes: Axes,
        *,
        mask: Mask | None = None,
        rotary: Rotation | None = None,
        context: Float[Array, "r t c"] | None = None,
    ) -> Float[Array, "r q d"]:
        """Attends from x to x itself, or to a context (cross-attention).

        Args:
            x: Activations; q are this rank's positions where `axes.sequence` divides them, else all s.
            axes: Mesh axes.
            mask: Attention mask; None if every position attends to all others.
            rotary: Rotation of queries and keys; None for none.
            context: Input of the key and value projections (cross-attention); None for x.
        """
        query, key, value = self.project_query_key_value(x, context, axes, rotary)
        if mask is None:
            heads_output = full_attention(query, key, value, scale=self.score_scale)  # [r, s, h, e]
        else:
            heads_output = self.attend(query, key, value, mask)
        return self.project_output(heads_output, axes)

    def project(
        self, x: Float[Array, "r q d"], axes: Axes, rotary: Rotation | None
    ) -> tuple[Float[Array, "r s h e"], tuple[Float[Array, "r s k e"], Float[Array, "r s k e"]]]:
        """Returns the queries of x, and its keys and values, which later positions read."""
        query, key, value = self.project_query_key_value(x, None, axes, rotary)
        return query, (key, value)

    def attend(
        self,
        query: Float[Array, "r s h e"],
        key: Float[Array, "r t k e"],
        value: Float[Array, "r t k e"],
        mask: Mask,
    ) -> Float[Array, "r s h e"]:
        """Returns the weighted sums of values, before the output projection."""
        sinks = None if self.sinks is None else self.sinks[...]
        return packed_attention(
            query, key, value, mask, scale=self.score_scale, softcap=self.score_softcap, sinks=sinks
        )

    def project_query_key_value(
        self,
        x: Float[Array, "r q d"],
        context: Float[Array, "r t c"] | None,
        axes: Axes,
        rotary: Rotation | None = None,
    ) -> tuple[Float[Array, "r s h e"], Float[Array, "r t k e"], Float[Array, "r t k e"]]:
        """Projects x to queries and the context (None for x) to keys and values, normed, rotated, at all positions."""
        if context is None:
            query, key, value = column_parallel_projections((self.query, self.key, self.value), x, axes)
        else:
            query = self.query(x, axes)
            key, value = column_parallel_projections((self.key, self.value), context, axes)
        query = self._split_heads(query, self.query_norm, axes)  # [r, s, h e] -> [r, s, h, e]
        key = self._split_heads(key, self.key_norm, axes)  # [r, t, k e] -> [r, t, k, e]
        value = self._split_heads(value, None, axes)  # [r, t, k e] -> [r, t, k, e]
        if rotary is not None:
            query, key = self._rotate(query, rotary), self._rotate(key, rotary)
            if rotary.query_scale is not None:
                query = (query * rotary.query_scale).astype(query.dtype)
        return query, key, value

    def _rotate(self, x: Float[Array, "r s h e"], rotary: Rotation) -> Float[Array, "r s h e"]:
        """Rotates queries or keys, and normalises the rotated heads if the layer has `rotated_norm`."""
        x = apply_rotary(x, rotary)
        if self.rotated_norm is None:
            return x
        normed = normalise_mean_square(x, self.rotated_norm)
        return normed if rotary.is_rotated is None else jnp.where(rotary.is_rotated, normed, x)

    def _split_heads(self, x: jax.Array, norm: Norm | None, axes: Axes) -> Float[Array, "r s h e"]:
        """Splits the channels into heads.

        A tensor-sharded norm, over the channels of all heads, is applied before the reshape; a norm per head after it.
        """
        if norm is not None and norm.split is not None:
            return norm(x, axes).reshape(*x.shape[:2], -1, self.head_width)
        x = x.reshape(*x.shape[:2], -1, self.head_width)
        return x if norm is None else norm(x)

    def project_output(self, heads_output: Float[Array, "r s h e"], axes: Axes) -> Float[Array, "r q d"]:
        """Joins the heads and applies the output projection."""
        joined = heads_output.reshape(*heads_output.shape[:2], -1)  # [r, s, h e]
        return self.output(joined if self.inner_norm is None else self.inner_norm(joined, axes), axes)


def build_attention(config: TransformerConfig) -> Attention:
    """Builds the attention that the configuration describes."""
    inner_norm = build_norm(config, config.query_width, split="tensor") if "attention" in config.inner_norms else None
    return Attention(
        config.width,
        config.heads,
        kv_heads=config.kv_heads,
        attention_width=config.attention_width,
        biases=config.biases,
        query_norm=_query_key_norm(config, config.query_width),
        key_norm=_query_key_norm(config, config.kv_width),
        inner_norm=inner_norm,
        score_scale=config.score_scale,
        score_softcap=config.score_softcap,
        sinks=config.attention_sinks,
        rotated_norm=config.norm_epsilon if config.qk_norm == "rotated" else None,
    )


def _query_key_norm(config: TransformerConfig, width: int) -> Norm | None:
    """Builds a norm with one scale for all heads ("head"), or with a scale for each channel of all heads ("width")."""
    if config.qk_norm == "head":
        return build_norm(config, config.head_width)
    if config.qk_norm == "width":
        return build_norm(config, width, split="tensor")
    return None
