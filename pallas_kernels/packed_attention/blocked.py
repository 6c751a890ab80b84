"""Attention of blocks of queries to the blocks of keys that overlap, in plain XLA; memory linear in the sequence.

One `fori_loop` runs over all pairs of blocks that overlap, of all rows; its trip count is traced, so that the cost
follows the segments and not the square of the row. The forward keeps a running softmax (arXiv 1805.02867, 2112.05682);
the backward computes the scores again from the saved output and log-sum-exp (FlashAttention, arXiv 2205.14135,
algorithm 4).

Where ranks divide the positions of a row, keys and values are sent around them (ring attention, arXiv 2310.01889): at
each step a rank computes the pairs of its queries with the keys that are there. The running softmax goes on from step
to step. In the backward the gradients of keys and values are sent along with them, and back to the rank that has these
after the last step. A row on one device is a ring of one step.

Arrays are laid out in blocks, `[r * m, k, g * q, e]` for queries, `[r * n, k, p, e]` for keys and `[r * n, k, p, u]`
for values: m and n blocks in a row, of q and p positions; k key heads, each shared by g query heads.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from pallas_kernels.packed_attention.block_pairs import BlockPairs, split_into_blocks
from pallas_kernels.packed_attention.dense import MASKED_SCORE
from pallas_kernels.packed_attention.ring_mask import RingMask
from pallas_kernels.packed_attention.scores import ScoreOptions
from pallas_kernels.packed_attention.segment_mask import SegmentMask, with_block_pairs
from pallas_kernels.packed_attention.token_ids import TokenIds, visibility
from pallas_kernels.varying import make_varying, rank_count, varying_axes


def attend(
    query: Float[Array, "r s h e"],
    key: Float[Array, "r t k e"],
    value: Float[Array, "r t k u"],
    mask: SegmentMask | RingMask,
    sinks: Float[Array, " h"] | None,
    options: ScoreOptions,
) -> Float[Array, "r s h u"]:
    """See `packed_attention`."""
    ring = mask if isinstance(mask, RingMask) else RingMask((_with_blocks(mask),), ())
    # All operands are cast to the same varying axes outside the custom derivative, so that JAX sums (`psum`) the
    # cotangent of an operand that is replicated over some of these axes.
    operands = (query, key, value) if sinks is None else (query, key, value, sinks.astype(jnp.float32))
    axes = frozenset().union(*map(varying_axes, (*operands, *jax.tree.leaves(ring))))
    query, key, value, *rest = make_varying(operands, tuple(sorted(axes)))
    return _attend(query, key, value, rest[0] if rest else None, ring, options)


def _with_blocks(mask: SegmentMask) -> SegmentMask:
    return mask if mask.block_pairs is not None else with_block_pairs(mask)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def _attend(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    sinks: jax.Array | None,
    ring: RingMask,
    options: ScoreOptions,
) -> jax.Array:
    return _forward(query, key, value, sinks, ring, options)[0]


def _forward(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    sinks: jax.Array | None,
    ring: RingMask,
    options: ScoreOptions,
) -> tuple[jax.Array, tuple]:
    """The output [r, s, h, u], and the residuals, which are linear in the sequence."""
    steps = [_Blocks(mask, query.shape, key.shape, options) for mask in ring.steps]
    blocks = steps[0]
    queries = blocks.split_queries(query)  # [rm, k, gq, e]
    keys, values = blocks.split_keys(key), blocks.split_keys(value)  # [rn, k, p, e], [rn, k, p, u]

    def accumulate_pair(step: _Blocks, keys: jax.Array, values: jax.Array, number: jax.Array, running: tuple) -> tuple:
        query_block, key_block = step.pair(number)
        scores, visible = step.scores(queries, keys, query_block, key_block)  # [k, gq, p]
        scores = jnp.where(visible, scores, MASKED_SCORE)
        weighted_sum, maximum, denominator = (_get(array, query_block) for array in running)
        new_maximum = jnp.maximum(maximum, jnp.max(scores, axis=-1))  # [k, gq]
        weights = jnp.exp(scores - new_maximum[:, :, None])  # [k, gq, p]
        correction = jnp.exp(maximum - new_maximum)  # [k, gq]
        denominator = denominator * correction + jnp.sum(weights, axis=-1)
        block_sum = _einsum("kqp,kpe->kqe", weights.astype(value.dtype), _get(values, key_block))
        weighted_sum = weighted_sum * correction[:, :, None] + block_sum  # [k, gq, u]
        updated = (weighted_sum, new_maximum, denominator)
        return tuple(_set(array, new, query_block) for array, new in zip(running, updated, strict=True))

    no_sums = _zeros_like(queries)[:, :, :, 0]  # [rm, k, gq]
    no_outputs = _zeros_like(queries, width=value.shape[3])  # [rm, k, gq, u]
    # The initial maximum, -5e29, is above masked scores, -1e30: exp(masked - maximum) underflows to 0, not to 1, even
    # if a query attends to nothing in the whole block.
    running = (no_outputs, no_sums + MASKED_SCORE / 2, no_sums)
    for number, step in enumerate(steps):
        here = (keys, values)
        if number + 1 < len(steps):
            keys, values = _send_on(here, ring.axes)  # while the pairs are computed
        running = lax.fori_loop(0, step.count, functools.partial(accumulate_pair, step, *here), running)
        running, keys, values = _end_of_step((running, keys, values), ring)
    weighted_sum, maximum, denominator = running
    if sinks is not None:
        sink_scores = blocks.per_query(sinks)  # [1, k, gq]
        new_maximum = jnp.maximum(maximum, sink_scores)
        correction = jnp.exp(maximum - new_maximum)
        weighted_sum = weighted_sum * correction[:, :, :, None]
        denominator, maximum = denominator * correction + jnp.exp(sink_scores - new_maximum), new_maximum
    denominator = jnp.where(denominator > 0, denominator, 1.0)
    output = blocks.join_queries(weighted_sum / denominator[:, :, :, None]).astype(query.dtype)  # [r, s, h, u]
    log_sum_exp = maximum + jnp.log(denominator)  # [rm, k, gq]
    return output, (query, key, value, sinks, ring, output, log_sum_exp)


def _backward(options: ScoreOptions, residuals: tuple, cotangent: jax.Array) -> tuple:
    query, key, value, sinks, ring, output, log_sum_exp = residuals
    steps = [_Blocks(mask, query.shape, key.shape, options) for mask in ring.steps]
    blocks = steps[0]
    queries, keys, values = blocks.split_queries(query), blocks.split_keys(key), blocks.split_keys(value)
    cotangents = blocks.split_queries(cotangent)  # [rm, k, gq, e]
    outputs = blocks.split_queries(output).astype(jnp.float32)
    output_dot_cotangent = jnp.sum(cotangents.astype(jnp.float32) * outputs, axis=-1)  # [rm, k, gq]

    def accumulate_pair(step: _Blocks, keys: jax.Array, values: jax.Array, number: jax.Array, running: tuple) -> tuple:
        query_block, key_block = step.pair(number)
        scores, visible = step.scores(queries, keys, query_block, key_block)  # [k, gq, p]
        weights = jnp.exp(jnp.where(visible, scores, MASKED_SCORE) - _get(log_sum_exp, query_block)[:, :, None])
        weight_gradient = _einsum("kqe,kpe->kqp", _get(cotangents, query_block), _get(values, key_block))
        score_gradient = weights * (weight_gradient - _get(output_dot_cotangent, query_block)[:, :, None])
        score_gradient = (score_gradient * options.score_derivative(scores)).astype(query.dtype)  # [k, gq, p]
        updates = (
            (query_block, _einsum("kqp,kpe->kqe", score_gradient, _get(keys, key_block))),
            (key_block, _einsum("kqp,kqe->kpe", score_gradient, _get(queries, query_block))),
            (key_block, _einsum("kqp,kqe->kpe", weights.astype(value.dtype), _get(cotangents, query_block))),
        )
        return tuple(
            _set(total, _get(total, block) + new, block) for total, (block, new) in zip(running, updates, strict=True)
        )

    query_sum = _zeros_like(queries)
    totals: tuple[jax.Array, ...] = ()  # of the keys and values of the step before
    for number, step in enumerate(steps):
        here = (keys, values)
        sent = (*(here if number + 1 < len(steps) else ()), *totals)
        received = _send_on(sent, ring.axes) if sent else ()  # while the pairs are computed
        running = (query_sum, _zeros_like(keys), _zeros_like(values))
        running = lax.fori_loop(0, step.count, functools.partial(accumulate_pair, step, *here), running)
        (query_sum, *added), arrived = _end_of_step((running, received), ring)
        if number + 1 < len(steps):
            keys, values, *arrived = arrived
        totals = tuple(map(jnp.add, arrived, added)) if number else tuple(added)
    totals = _send_on(totals, ring.axes) if ring.axes else totals
    gradients = (blocks.join_queries(query_sum), *map(blocks.join_keys, totals))
    sink_gradient = None
    if sinks is not None:
        sink_weights = jnp.exp(blocks.per_query(sinks) - log_sum_exp)  # [rm, k, gq]
        sink_gradient = -blocks.sum_per_head(sink_weights * output_dot_cotangent)
    return *(gradient.astype(query.dtype) for gradient in gradients), sink_gradient, None


_attend.defvjp(_forward, _backward)


class _Blocks:
    """Splits arrays into blocks and joins them again, and computes the scores of one pair of blocks."""

    def __init__(
        self, mask: SegmentMask, query_shape: tuple[int, ...], key_shape: tuple[int, ...], options: ScoreOptions
    ) -> None:
        pairs: BlockPairs = mask.block_pairs
        self._pair_indices, self.count, self._sizes = pairs.pair_indices, pairs.count, pairs.block_sizes
        self._shapes, self._group = (query_shape, key_shape), query_shape[2] // key_shape[2]
        self._options, self._window = options, mask.window
        self._blocks_per_row = tuple(
            -(-shape[1] // size) for shape, size in zip(self._shapes, self._sizes, strict=True)
        )  # m, n
        self._ids = tuple(
            TokenIds(*(None if array is None else _flatten_rows(split_into_blocks(array, size)) for array in ids))
            for ids, size in zip((mask.queries, mask.keys), self._sizes, strict=True)
        )

    def split_queries(self, x: Float[Array, "r s h e"]) -> Float[Array, "rm k gq e"]:
        """Splits queries into blocks; query heads that share a key head are concatenated along the positions."""
        return _split(x, self._sizes[0], self._group)

    def split_keys(self, x: Float[Array, "r t k e"]) -> Float[Array, "rn k p e"]:
        """Splits keys or values into blocks."""
        return _split(x, self._sizes[1], 1)

    def join_queries(self, x: Float[Array, "rm k gq e"]) -> Float[Array, "r s h e"]:
        """The inverse of `split_queries`."""
        return _join(x, self._shapes[0], self._sizes[0], self._group)

    def join_keys(self, x: Float[Array, "rn k p e"]) -> Float[Array, "r t k e"]:
        """The inverse of `split_keys`."""
        return _join(x, self._shapes[1], self._sizes[1], 1)

    def per_query(self, x: Float[Array, " h"]) -> Float[Array, "1 k gq"]:
        """Repeats a number of each head for each of its queries in a block."""
        return jnp.repeat(x.reshape(1, -1, self._group), self._sizes[0], axis=2)

    def sum_per_head(self, x: Float[Array, "rm k gq"]) -> Float[Array, " h"]:
        """Sums over all queries of each head."""
        return jnp.sum(x.reshape(*x.shape[:2], self._group, -1), axis=(0, 3)).reshape(-1)

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
    ) -> tuple[Float[Array, "k gq p"], Bool[Array, "1 gq p"]]:
        """Scores of one pair in float32, and where a query attends to a key."""
        products = _einsum("kqe,kpe->kqp", _get(queries, query_block), _get(keys, key_block))
        visible = jnp.tile(self._visibility(query_block, key_block), (self._group, 1))[None]
        return self._options.scores(products), visible

    def _visibility(self, query_block: Int[Array, ""], key_block: Int[Array, ""]) -> Bool[Array, "q p"]:
        queries, keys = (
            TokenIds(*(None if array is None else _get(array, block) for array in ids))
            for ids, block in zip(self._ids, (query_block, key_block), strict=True)
        )
        return visibility(queries, keys, self._window)


def _send_on(arrays: tuple[Float[Array, "rn k p _"], ...], axes: tuple[str, ...]) -> tuple[jax.Array, ...]:
    """Receives the arrays of the rank before this one; this rank's arrays go to the one after it.

    They are joined to one array, because XLA lets one permute run at a time.
    """
    ranks = rank_count(axes)
    smallest = min((array.dtype for array in arrays), key=lambda dtype: dtype.itemsize)
    parts = [_with_elements_of(array, smallest) for array in arrays]
    joined = jnp.concatenate(parts, axis=-1)
    received = lax.ppermute(joined, axes, [(rank, (rank + 1) % ranks) for rank in range(ranks)])
    ends = np.cumsum([part.shape[-1] for part in parts])[:-1]
    split = jnp.split(received, ends, axis=-1)
    return tuple(_with_elements_of(part, array.dtype) for part, array in zip(split, arrays, strict=True))


def _with_elements_of(x: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """Reinterprets the bits as elements of another type along the last dimension."""
    if x.dtype.itemsize < dtype.itemsize:
        x = x.reshape(*x.shape[:-1], -1, dtype.itemsize // x.dtype.itemsize)
    bits = lax.bitcast_convert_type(x, dtype)
    return bits.reshape(*bits.shape[:3], -1)


def _end_of_step(results: Any, ring: RingMask) -> Any:
    """The results of a step, all of which exist before the next begins; else XLA would send first, and wait."""
    return lax.optimization_barrier(results) if ring.axes else results


def _split(x: Float[Array, "r s h e"], block: int, group: int) -> Array:
    _, length, heads, width = x.shape
    x = jnp.pad(x, ((0, 0), (0, -length % block), (0, 0), (0, 0)))
    x = x.reshape(-1, block, heads // group, group, width).transpose(0, 2, 3, 1, 4)  # [rm, k, g, q, e]
    return x.reshape(-1, heads // group, group * block, width)  # [rm, k, gq, e]


def _join(x: Array, shape: tuple[int, ...], block: int, group: int) -> Float[Array, "r s h e"]:
    rows, length, heads, _ = shape
    width = x.shape[-1]
    x = x.reshape(-1, heads // group, group, block, width).transpose(0, 3, 1, 2, 4)  # [rm, q, k, g, e]
    return x.reshape(rows, -1, heads, width)[:, :length]


def _flatten_rows(x: Int[Array, "r m block"]) -> Int[Array, "rm block"]:
    return x.reshape(-1, x.shape[-1])


def _zeros_like(x: jax.Array, width: int | None = None) -> jax.Array:
    """Zeros in float32 that vary over the same mesh axes as x; of another last dimension, if it is given."""
    shape = (*x.shape[:-1], x.shape[-1] if width is None else width)
    return make_varying(jnp.zeros(shape, jnp.float32), tuple(sorted(varying_axes(x))))


def _einsum(subscripts: str, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.einsum(subscripts, x, y, preferred_element_type=jnp.float32)


def _get(x: jax.Array, index: Int[Array, ""]) -> jax.Array:
    return lax.dynamic_index_in_dim(x, index, keepdims=False)


def _set(x: jax.Array, new: jax.Array, index: Int[Array, ""]) -> jax.Array:
    return lax.dynamic_update_index_in_dim(x, new, index, 0)
