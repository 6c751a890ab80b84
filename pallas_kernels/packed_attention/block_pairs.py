"""Which blocks of queries may attend to which blocks of keys."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int

from pallas_kernels.packed_attention.token_ids import TokenIds

MAX_SMALL_BLOCK_ROW = 8192
"""Positions of a row up to which blocks are small."""


@dataclasses.dataclass(frozen=True)
class BlockPairs:
    """The pairs of blocks whose segments overlap, as a list of static length: 4 bytes for each possible pair.

    Attributes:
        pair_indices: Linear indices of pairs, int32 `[r * m * n]`: `(row * m + block of queries) * n + block of keys`
            with m and n blocks in a row; the pairs that overlap come first, in ascending order.
        count: How many of them overlap.
        block_sizes: Positions of a block of queries and of a block of keys.
    """

    pair_indices: Any
    count: Any
    block_sizes: tuple[int, int]


jax.tree_util.register_dataclass(BlockPairs, ["pair_indices", "count"], ["block_sizes"])


def default_block_size(length: int) -> int:
    """Positions of a block: 64, and 128 in long rows, where the list of pairs would otherwise take most memory."""
    return min(64 if length <= MAX_SMALL_BLOCK_ROW else 128, length)


def find_block_pairs(
    queries: TokenIds, keys: TokenIds, first_visible: Int[Array, "r s"] | None, blocks: tuple[int, int]
) -> BlockPairs:
    """Returns the pairs of blocks that overlap; takes the arguments of `blocks_overlap`."""
    overlap = blocks_overlap(queries, keys, first_visible, blocks).reshape(-1)  # [r * m * n]
    numbers = jnp.arange(overlap.size, dtype=jnp.int32)
    pair_indices = lax.sort(jnp.where(overlap, numbers, overlap.size))
    return BlockPairs(jnp.minimum(pair_indices, overlap.size - 1), jnp.sum(overlap, dtype=jnp.int32), blocks)


def blocks_overlap(
    queries: TokenIds, keys: TokenIds, first_visible: Int[Array, "r s"] | None, blocks: tuple[int, int]
) -> Bool[Array, "r m n"]:
    """Whether a query of one block may attend to a key of another.

    It is never False for a pair in which a query attends to a key, whatever the order of the segments. It is exact
    where segments are in order, a block's tokens are adjacent in the row, and there are neither branches nor attended
    blocks.

    Args:
        queries: Ids of the queries, each `[r, s]`.
        keys: Ids of the keys, each `[r, t]`.
        first_visible: Place in the row before which a query attends to nothing; None without a window.
        blocks: Positions of a block of queries and of a block of keys.
    """
    query, key = (_BlockRanges(ids, size) for ids, size in zip((queries, keys), blocks, strict=True))
    overlap = _ranges_meet(query.of(queries.segments), key.of(keys.segments))
    if queries.branches is not None:
        key_branches = key.of(keys.branches)
        overlap &= (key_branches[0] == 0)[:, None, :] | _ranges_meet(query.of(queries.branches), key_branches)
    attended = jnp.bool_(True)
    if queries.order is not None:
        attended &= key.of(keys.order)[0][:, None, :] <= query.of(queries.order)[1][:, :, None]
    if first_visible is not None:
        attended &= query.of(first_visible)[0][:, :, None] <= key.of(keys.order)[1][:, None, :]
    if queries.blocks is not None:
        # Numbers begin anew in each segment: where several meet, a pair may be listed without need.
        attended |= _ranges_meet(query.of_positive(queries.blocks), key.of_positive(keys.blocks))
    return overlap & attended


class _BlockRanges:
    """The least and the greatest id of each block of one side; an empty range where a block has no token."""

    def __init__(self, ids: TokenIds, block: int) -> None:
        self._block = block
        self._is_real = split_into_blocks(ids.segments, block) > 0  # [r, m, block]

    def of(self, ids: Int[Array, "r s"]) -> tuple[Int[Array, "r m"], Int[Array, "r m"]]:
        """Returns the ranges of the ids of all tokens but padding."""
        return _value_range(split_into_blocks(ids, self._block), self._is_real)

    def of_positive(self, ids: Int[Array, "r s"]) -> tuple[Int[Array, "r m"], Int[Array, "r m"]]:
        """Returns the ranges of the ids above 0."""
        split = split_into_blocks(ids, self._block)
        return _value_range(split, split > 0)


def split_into_blocks(ids: Int[Array, "r s"], block: int) -> Int[Array, "r m block"]:
    """Rows in blocks, padded with zeros at the end where the block does not divide the row."""
    rows, length = ids.shape
    return jnp.pad(ids, ((0, 0), (0, -length % block))).reshape(rows, -1, block)


def _value_range(
    ids: Int[Array, "r m block"], is_real: Bool[Array, "r m block"]
) -> tuple[Int[Array, "r m"], Int[Array, "r m"]]:
    """The least and the greatest id of the real positions in each block; an empty range where there is none."""
    low, high = jnp.iinfo(ids.dtype).min, jnp.iinfo(ids.dtype).max
    return jnp.min(jnp.where(is_real, ids, high), axis=-1), jnp.max(jnp.where(is_real, ids, low), axis=-1)


def _ranges_meet(
    query_range: tuple[Int[Array, "r m"], Int[Array, "r m"]], key_range: tuple[Int[Array, "r n"], Int[Array, "r n"]]
) -> Bool[Array, "r m n"]:
    first = jnp.maximum(query_range[0][:, :, None], key_range[0][:, None, :])
    return first <= jnp.minimum(query_range[1][:, :, None], key_range[1][:, None, :])
