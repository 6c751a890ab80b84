"""Attention of blocks of queries to the blocks of keys that overlap, in plain XLA; memory linear in the sequence.

One `fori_loop` runs over all pairs of blocks that overlap, of all rows; its trip count is traced, so that the cost
follows the segments and not the square of the row. The forward keeps a running softmax (arXiv 1805.02867, 2112.05682);
the backward computes the scores again from the saved output and log-sum-exp (FlashAttention, arXiv 2205.14135,
algorithm 4).

Arrays are laid out in blocks, `[r * m, k, g * q, e]` for queries and `[r * n, k, p, e]` for keys and values: m and n
blocks in a row, of q and p positions; k key heads, each shared by g query heads.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from pallas_kernels.packed_attention.block_pairs import (
    BlockPairs,
    default_block_size,
    find_block_pairs,
    split_into_blocks,
)
from pallas_kernels.packed_attention.segment_mask import SegmentMask, visibility
from pallas_kernels.varying import make_varying, varying_axes

MASKED_SCORE = -1e30


def attend(
    query: Float[Array, "r s h e"], key: Float[Array, "r t k e"], value: Float[Array, "r t k e"], mask: SegmentMask
) -> Float[Array, "r s h e"]:
    """See `packed_attention`."""
    if mask.block_pairs is None:
        blocks = (default_block_size(query.shape[1]), default_block_size(key.shape[1]))
        pairs = find_block_pairs(mask.query_segments, mask.key_segments, mask.branches, mask.causal, blocks)
        mask = dataclasses.replace(mask, block_pairs=pairs)
    # All operands are cast to the same varying axes outside the custom derivative, so that JAX sums (`psum`) the
    # cotangent of an operand that is replicated over some of these axes.
    axes = frozenset().union(*map(varying_axes, (query, key, value, mask.query_segments)))
    return _attend(*make_varying((query, key, value), tuple(sorted(axes))), mask)


@jax.custom_vjp
def _attend(query: jax.Array, key: jax.Array, value: jax.Array, mask: SegmentMask) -> jax.Array:
    return _forward(query, key, value, mask)[0]


def _forward(query: jax.Array, key: jax.Array, value: jax.Array, mask: SegmentMask) -> tuple[jax.Array, tuple]:
    """The output [r, s, h, e], and the residuals, which are linear in the sequence."""
    blocks = _Blocks(mask, query.shape, key.shape)
    queries = blocks.split_queries(query)  # [rm, k, gq, e]
    keys, values = blocks.split_keys(key), blocks.split_keys(value)  # [rn, k, p, e]

    def accumulate_pair(number: jax.Array, running: tuple) -> tuple:
        query_block, key_block = blocks.pair(number)
        scores = blocks.scores(queries, keys, query_block, key_block)  # [k, gq, p]
        weighted_sum, maximum, denominator = (_get(array, query_block) for array in running)
        new_maximum = jnp.maximum(maximum, jnp.max(scores, axis=-1))  # [k, gq]
        weights = jnp.exp(scores - new_maximum[:, :, None])  # [k, gq, p]
        correction = jnp.exp(maximum - new_maximum)  # [k, gq]
        denominator = denominator * correction + jnp.sum(weights, axis=-1)
        block_sum = _einsum("kqp,kpe->kqe", weights.astype(value.dtype), _get(values, key_block))
        weighted_sum = weighted_sum * correction[:, :, None] + block_sum  # [k, gq, e]
        updated = (weighted_sum, new_maximum, denominator)
        return tuple(_set(array, new, query_block) for array, new in zip(running, updated, strict=True))

    zeros = _zeros_like(queries)  # [rm, k, gq, e]
    # The initial maximum, -5e29, is above masked scores, -1e30: exp(masked - maximum) underflows to 0, not to 1, even
    # if a query attends to nothing in the whole block.
    initial = (zeros, zeros[:, :, :, 0] + MASKED_SCORE / 2, zeros[:, :, :, 0])
    weighted_sum, maximum, denominator = lax.fori_loop(0, blocks.count, accumulate_pair, initial)
    denominator = jnp.where(denominator > 0, denominator, 1.0)
    output = blocks.join_queries(weighted_sum / denominator[:, :, :, None]).astype(query.dtype)  # [r, s, h, e]
    log_sum_exp = maximum + jnp.log(denominator)  # [rm, k, gq]
    return output, (query, key, value, mask, output, log_sum_exp)


def _backward(residuals: tuple, cotangent: jax.Array) -> tuple:
    query, key, value, mask, output, log_sum_exp = residuals
    blocks = _Blocks(mask, query.shape, key.shape)
    queries, keys, values = blocks.split_queries(query), blocks.split_keys(key), blocks.split_keys(value)
    cotangents = blocks.split_queries(cotangent)  # [rm, k, gq, e]
    outputs = blocks.split_queries(output).astype(jnp.float32)
    output_dot_cotangent = jnp.sum(cotangents.astype(jnp.float32) * outputs, axis=-1)  # [rm, k, gq]

    def accumulate_pair(number: jax.Array, running: tuple) -> tuple:
        query_block, key_block = blocks.pair(number)
        scores = blocks.scores(queries, keys, query_block, key_block)  # [k, gq, p]
        weights = jnp.exp(scores - _get(log_sum_exp, query_block)[:, :, None])
        weight_gradient = _einsum("kqe,kpe->kqp", _get(cotangents, query_block), _get(values, key_block))
        score_gradient = weights * (weight_gradient - _get(output_dot_cotangent, query_block)[:, :, None])
        score_gradient = (score_gradient * blocks.scale).astype(query.dtype)  # [k, gq, p]
        updates = (
            (query_block, _einsum("kqp,kpe->kqe", score_gradient, _get(keys, key_block))),
            (key_block, _einsum("kqp,kqe->kpe", score_gradient, _get(queries, query_block))),
            (key_block, _einsum("kqp,kqe->kpe", weights.astype(value.dtype), _get(cotangents, query_block))),
        )
        return tuple(
            _set(total, _get(total, block) + new, block) for total, (block, new) in zip(running, updates, strict=True)
        )

    initial = (_zeros_like(queries), _zeros_like(keys), _zeros_like(values))
    query_gradient, key_gradient, value_gradient = lax.fori_loop(0, blocks.count, accumulate_pair, initial)
    gradients = (
        blocks.join_queries(query_gradient),
        blocks.join_keys(key_gradient),
        blocks.join_keys(value_gradient),
    )
    return *(gradient.astype(query.dtype) for gradient in gradients), None


_attend.defvjp(_forward, _backward)


class _Blocks:
    """Splits arrays into blocks and joins them again, and computes the scores of one pair of blocks."""

    def __init__(self, mask: SegmentMask, query_shape: tuple[int, ...], key_shape: tuple[int, ...]) -> None:
        pairs: BlockPairs = mask.block_pairs
        self._pair_indices, self.count, self._sizes = pairs.pair_indices, pairs.count, pairs.block_sizes
        self._shapes, self._group = (query_shape, key_shape), query_shape[2] // key_shape[2]
        self.scale = query_shape[3] ** -0.5
        query_ids = split_into_blocks(mask.query_segments, self._sizes[0])  # [r, m, q]
        key_ids = split_into_blocks(mask.key_segments, self._sizes[1])  # [r, n, p]
        self._blocks_per_row = query_ids.shape[1], key_ids.shape[1]  # m, n
        self._segments = _flatten_rows(query_ids), _flatten_rows(key_ids)
        self._causal, self._branches = mask.causal, None
        if mask.branches is not None:
            query_branches, key_branches = (
                _flatten_rows(split_into_blocks(mask.branches, size)) for size in self._sizes
            )
            self._branches = query_branches, key_branches

    def split_queries(self, x: Float[Array, "r s h e"]) -> Float[Array, "rm k gq e"]:
        """Into blocks; the query heads that share a key head are concatenated along the positions."""
        return _split(x, self._sizes[0], self._group)

    def split_keys(self, x: Float[Array, "r t k e"]) -> Float[Array, "rn k p e"]:
        """Into blocks."""
        return _split(x, self._sizes[1], 1)

    def join_queries(self, x: Float[Array, "rm k gq e"]) -> Float[Array, "r s h e"]:
        """The inverse of `split_queries`."""
        return _join(x, self._shapes[0], self._sizes[0], self._group)

    def join_keys(self, x: Float[Array, "rn k p e"]) -> Float[Array, "r t k e"]:
        """The inverse of `split_keys`."""
        return _join(x, self._shapes[1], self._sizes[1], 1)

    def pair(self, number: Int[Array, ""]) -> tuple[Int[Array, ""], Int[Array, ""]]:
        """Indices of a pair's block of queries, 0 to rm, and block of keys, 0 to rn."""
        m, n = self._blocks_per_row
        pair_index = _get(self._pair_indices, number)
        query_block = lax.div(pair_index, np.int32(n))
        return query_block, lax.div(query_block, np.int32(m)) * n + lax.rem(pair_index, np.int32(n))

    def scores(
        self,
        queries: Float[Array, "rm k gq e"],
        keys: Float[Array, "rn k p e"],
        query_block: Int[Array, ""],
        key_block: Int[Array, ""],
    ) -> Float[Array, "k gq p"]:
        """Scores of one pair in float32; `MASKED_SCORE` where a query does not attend to a key."""
        scores = _einsum("kqe,kpe->kqp", _get(queries, query_block), _get(keys, key_block)) * self.scale
        visible = jnp.tile(self._visibility(query_block, key_block), (self._group, 1))[None]  # [1, gq, p]
        return jnp.where(visible, scores, MASKED_SCORE)

    def _visibility(self, query_block: Int[Array, ""], key_block: Int[Array, ""]) -> Bool[Array, "q p"]:
        segments = _get(self._segments[0], query_block), _get(self._segments[1], key_block)
        branches = positions = None
        if self._branches is not None:
            branches = _get(self._branches[0], query_block), _get(self._branches[1], key_block)
        if self._causal:
            positions = self._positions(query_block, 0), self._positions(key_block, 1)
        return visibility(segments, branches, positions)

    def _positions(self, block: Int[Array, ""], side: int) -> Int[Array, " block"]:
        """Positions in its row of a block of queries (side 0) or of keys (side 1)."""
        block_in_row = lax.rem(block, np.int32(self._blocks_per_row[side]))
        return block_in_row * self._sizes[side] + jnp.arange(self._sizes[side], dtype=jnp.int32)


def _split(x: Float[Array, "r s h e"], block: int, group: int) -> Array:
    _, length, heads, width = x.shape
    x = jnp.pad(x, ((0, 0), (0, -length % block), (0, 0), (0, 0)))
    x = x.reshape(-1, block, heads // group, group, width).transpose(0, 2, 3, 1, 4)  # [rm, k, g, q, e]
    return x.reshape(-1, heads // group, group * block, width)  # [rm, k, gq, e]


def _join(x: Array, shape: tuple[int, ...], block: int, group: int) -> Float[Array, "r s h e"]:
    rows, length, heads, width = shape
    x = x.reshape(-1, heads // group, group, block, width).transpose(0, 3, 1, 2, 4)  # [rm, q, k, g, e]
    return x.reshape(rows, -1, heads, width)[:, :length]


def _flatten_rows(x: Int[Array, "r m block"]) -> Int[Array, "rm block"]:
    return x.reshape(-1, x.shape[-1])


def _zeros_like(x: jax.Array) -> jax.Array:
    """Zeros in float32 that vary over the same mesh axes as x."""
    return make_varying(jnp.zeros(x.shape, jnp.float32), tuple(sorted(varying_axes(x))))


def _einsum(subscripts: str, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.einsum(subscripts, x, y, preferred_element_type=jnp.float32)


def _get(x: jax.Array, index: Int[Array, ""]) -> jax.Array:
    return lax.dynamic_index_in_dim(x, index, keepdims=False)


def _set(x: jax.Array, new: jax.Array, index: Int[Array, ""]) -> jax.Array:
    return lax.dynamic_update_index_in_dim(x, new, index, 0)
