"""Blocks of queries against the blocks of keys that they touch, in plain XLA; memory linear in the sequence.

One loop goes through the pairs of blocks that touch, of all rows, and as often as there are such pairs: the work is
that of the segments. Going forward it keeps a running softmax (arXiv 1805.02867, 2112.05682); going back it computes
the scores again from the saved output and log-sum-exp (FlashAttention, arXiv 2205.14135, algorithm 4).

Arrays are laid out in blocks, `[r * m, k, g * q, e]` for queries and `[r * n, k, p, e]` for keys and values: m and n
blocks a row, of q and p positions; k key heads, each seen by g query heads.
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

HIDDEN = -1e30


def attend(
    query: Float[Array, "r s h e"], key: Float[Array, "r t k e"], value: Float[Array, "r t k e"], packing: SegmentMask
) -> Float[Array, "r s h e"]:
    """See `packed_attention`."""
    if packing.block_pairs is None:
        blocks = (default_block_size(query.shape[1]), default_block_size(key.shape[1]))
        pairs = find_block_pairs(packing.query_segments, packing.key_segments, packing.branches, packing.causal, blocks)
        packing = dataclasses.replace(packing, block_pairs=pairs)
    # All vary alike before the custom derivative, so that what is the same on some ranks gets the sum of gradients.
    axes = frozenset().union(*map(varying_axes, (query, key, value, packing.query_segments)))
    return _attend(*make_varying((query, key, value), tuple(sorted(axes))), packing)


@jax.custom_vjp
def _attend(query: jax.Array, key: jax.Array, value: jax.Array, packing: SegmentMask) -> jax.Array:
    return _forward(query, key, value, packing)[0]


def _forward(query: jax.Array, key: jax.Array, value: jax.Array, packing: SegmentMask) -> tuple[jax.Array, tuple]:
    """The output; and what the backward needs, which is linear in the sequence."""
    work = _Work(packing, query.shape, key.shape)
    queries, keys, values = work.queries(query), work.keys(key), work.keys(value)

    def step(number: jax.Array, running: tuple) -> tuple:
        mine, theirs = work.pair(number)
        scores = work.scores(queries, keys, mine, theirs)
        total, most, weight = (_at(x, mine) for x in running)
        new = jnp.maximum(most, jnp.max(scores, axis=-1))
        shares, kept = jnp.exp(scores - new[:, :, None]), jnp.exp(most - new)
        weight = weight * kept + jnp.sum(shares, axis=-1)
        total = total * kept[:, :, None] + _product("kqp,kpe->kqe", shares.astype(value.dtype), _at(values, theirs))
        return tuple(_put(x, new, mine) for x, new in zip(running, (total, new, weight), strict=True))

    zeros = _zeros(queries)
    # Above what is hidden: the shares of a query that sees nothing of a block are 0, not 1.
    start = (zeros, zeros[:, :, :, 0] + HIDDEN / 2, zeros[:, :, :, 0])
    total, most, weight = lax.fori_loop(0, work.count, step, start)
    weight = jnp.where(weight > 0, weight, 1.0)
    output = work.back_queries(total / weight[:, :, :, None]).astype(query.dtype)
    return output, (query, key, value, packing, output, most + jnp.log(weight))


def _backward(kept: tuple, cotangent: jax.Array) -> tuple:
    query, key, value, packing, output, normaliser = kept
    work = _Work(packing, query.shape, key.shape)
    queries, keys, values, given = work.queries(query), work.keys(key), work.keys(value), work.queries(cotangent)
    of_output = jnp.sum(given.astype(jnp.float32) * work.queries(output).astype(jnp.float32), axis=-1)

    def step(number: jax.Array, running: tuple) -> tuple:
        mine, theirs = work.pair(number)
        shares = jnp.exp(work.scores(queries, keys, mine, theirs) - _at(normaliser, mine)[:, :, None])
        gradient = _product("kqe,kpe->kqp", _at(given, mine), _at(values, theirs))
        gradient = (shares * (gradient - _at(of_output, mine)[:, :, None]) * work.scale).astype(query.dtype)
        more = (
            _product("kqp,kpe->kqe", gradient, _at(keys, theirs)),
            _product("kqp,kqe->kpe", gradient, _at(queries, mine)),
            _product("kqp,kqe->kpe", shares.astype(value.dtype), _at(given, mine)),
        )
        places = (mine, theirs, theirs)
        return tuple(_put(x, _at(x, at) + new, at) for x, new, at in zip(running, more, places, strict=True))

    start = (_zeros(queries), _zeros(keys), _zeros(values))
    of_query, of_key, of_value = lax.fori_loop(0, work.count, step, start)
    back = (work.back_queries(of_query), work.back_keys(of_key), work.back_keys(of_value))
    return *(x.astype(query.dtype) for x in back), None


_attend.defvjp(_forward, _backward)


class _Work:
    """Arrays in blocks and back, and one pair of blocks."""

    def __init__(self, packing: SegmentMask, query: tuple[int, ...], key: tuple[int, ...]) -> None:
        pairs: BlockPairs = packing.block_pairs
        self._order, self.count, self._blocks = pairs.order, pairs.count, pairs.blocks
        self._shapes, self._group, self.scale = (query, key), query[2] // key[2], query[3] ** -0.5
        ids = (
            split_into_blocks(packing.query_segments, self._blocks[0]),
            split_into_blocks(packing.key_segments, self._blocks[1]),
        )
        self._numbers = ids[0].shape[1], ids[1].shape[1]
        self._segments = tuple(_flat(x) for x in ids)
        self._causal, self._branches = packing.causal, None
        if packing.branches is not None:
            self._branches = tuple(_flat(split_into_blocks(packing.branches, block)) for block in self._blocks)

    def queries(self, x: Float[Array, "r s h e"]) -> Float[Array, "rm k gq e"]:
        """In blocks; the query heads of a key head stand behind each other."""
        return _blocked(x, self._blocks[0], self._group)

    def keys(self, x: Float[Array, "r t k e"]) -> Float[Array, "rn k p e"]:
        """In blocks."""
        return _blocked(x, self._blocks[1], 1)

    def back_queries(self, x: Float[Array, "rm k gq e"]) -> Float[Array, "r s h e"]:
        """Out of blocks."""
        return _unblocked(x, self._shapes[0], self._blocks[0], self._group)

    def back_keys(self, x: Float[Array, "rn k p e"]) -> Float[Array, "r t k e"]:
        """Out of blocks."""
        return _unblocked(x, self._shapes[1], self._blocks[1], 1)

    def pair(self, number: Int[Array, ""]) -> tuple[Int[Array, ""], Int[Array, ""]]:
        """Numbers of the blocks of queries and of keys, through all rows."""
        m, n = self._numbers
        order = _at(self._order, number)
        mine = lax.div(order, np.int32(n))
        return mine, lax.div(mine, np.int32(m)) * n + lax.rem(order, np.int32(n))

    def scores(
        self, queries: Float[Array, "rm k gq e"], keys: Float[Array, "rn k p e"], mine: Array, theirs: Array
    ) -> Float[Array, "k gq p"]:
        """Of one pair, in float32; far below all others where a key is not seen."""
        scores = _product("kqe,kpe->kqp", _at(queries, mine), _at(keys, theirs)) * self.scale
        mask = jnp.tile(self._visible(mine, theirs), (self._group, 1))[None]
        return jnp.where(mask, scores, HIDDEN)

    def _visible(self, mine: Array, theirs: Array) -> Bool[Array, "q p"]:
        at = (mine, theirs)
        segments = tuple(_at(x, place) for x, place in zip(self._segments, at, strict=True))
        branches, places = self._branches, None
        if branches is not None:
            branches = tuple(_at(x, place) for x, place in zip(branches, at, strict=True))
        if self._causal:
            inside = (lax.rem(place, np.int32(number)) for place, number in zip(at, self._numbers, strict=True))
            places = tuple(
                first * block + jnp.arange(block, dtype=jnp.int32)
                for first, block in zip(inside, self._blocks, strict=True)
            )
        return visibility(segments, branches, places)


def _blocked(x: Float[Array, "r s h e"], block: int, group: int) -> Array:
    rows, length, heads, width = x.shape
    x = jnp.pad(x, ((0, 0), (0, -length % block), (0, 0), (0, 0)))
    x = x.reshape(-1, block, heads // group, group, width).transpose(0, 2, 3, 1, 4)
    return x.reshape(-1, heads // group, group * block, width)


def _unblocked(x: Array, shape: tuple[int, ...], block: int, group: int) -> Float[Array, "r s h e"]:
    rows, length, heads, width = shape
    x = x.reshape(-1, heads // group, group, block, width).transpose(0, 3, 1, 2, 4)
    return x.reshape(rows, -1, heads, width)[:, :length]


def _flat(x: Int[Array, "r m block"]) -> Int[Array, "rm block"]:
    return x.reshape(-1, x.shape[-1])


def _zeros(x: jax.Array) -> jax.Array:
    """Zeros in float32 that vary as x does."""
    return make_varying(jnp.zeros(x.shape, jnp.float32), tuple(sorted(varying_axes(x))))


def _product(of: str, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.einsum(of, x, y, preferred_element_type=jnp.float32)


def _at(x: jax.Array, place: Int[Array, ""]) -> jax.Array:
    return lax.dynamic_index_in_dim(x, place, keepdims=False)


def _put(x: jax.Array, new: jax.Array, place: Int[Array, ""]) -> jax.Array:
    return lax.dynamic_update_index_in_dim(x, new, place, 0)
