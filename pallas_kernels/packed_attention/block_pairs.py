"""Which blocks of queries may attend to which blocks of keys."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Int

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
    query_segments: Int[Array, "r s"],
    key_segments: Int[Array, "r t"],
    branches: Int[Array, "r s"] | None,
    first_visible: Int[Array, "r s"] | None,
    attended_blocks: Int[Array, "r s"] | None,
    *,
    causal: bool,
    blocks: tuple[int, int],
) -> BlockPairs:
    """The pairs of blocks that overlap."""
    overlap = blocks_overlap(
        query_segments, key_segments, branches, first_visible, attended_blocks, causal=causal, blocks=blocks
    )
    overlap = overlap.reshape(-1)  # [r * m * n]
    numbers = jnp.arange(overlap.size, dtype=jnp.int32)
    pair_indices = lax.sort(jnp.where(overlap, numbers, overlap.size))
    return BlockPairs(jnp.minimum(pair_indices, overlap.size - 1), jnp.sum(overlap, dtype=jnp.int32), blocks)


def blocks_overlap(
    query_segments: Int[Array, "r s"],
    key_segments: Int[Array, "r t"],
    branches: Int[Array, "r s"] | None,
    first_visible: Int[Array, "r s"] | None,
    attended_blocks: Int[Array, "r s"] | None = None,
    *,
    causal: bool,
    blocks: tuple[int, int],
) -> Bool[Array, "r m n"]:
    """Whether a query of one block may attend to a key of another.

    It is never False for a pair in which a query attends to a key, whatever the order of the segments. It is exact
    where segments are in order and there are neither branches nor attended blocks.

    Args:
        query_segments, key_segments, branches: See `SegmentMask`.
        first_visible: Place in the row before which a query attends to nothing; None without a window.
        attended_blocks: `SegmentMask.blocks`; None without any.
        causal: Whether a position attends only to itself, the positions before it, and those of its attended block.
        blocks: Positions of a block of queries and of a block of keys.
    """
    query_blocks = split_into_blocks(query_segments, blocks[0])  # [r, m, q]
    key_blocks = split_into_blocks(key_segments, blocks[1])  # [r, n, p]
    overlap = _ranges_meet(_value_range(query_blocks, query_blocks > 0), _value_range(key_blocks, key_blocks > 0))
    if branches is not None:
        query_range = _value_range(split_into_blocks(branches, blocks[0]), query_blocks > 0)
        key_range = _value_range(split_into_blocks(branches, blocks[1]), key_blocks > 0)
        overlap &= (key_range[0] == 0)[:, None, :] | _ranges_meet(query_range, key_range)
    if causal:
        last_query = np.arange(1, query_blocks.shape[1] + 1) * blocks[0] - 1  # [m]
        first_key = np.arange(key_blocks.shape[1]) * blocks[1]  # [n]
        in_order = jnp.asarray(first_key[None, None, :] <= last_query[None, :, None])
        if attended_blocks is not None:
            # Numbers begin anew in each segment: where several meet, a pair may be listed without need.
            query_range, key_range = (
                _value_range(of_side, of_side > 0)
                for of_side in (split_into_blocks(attended_blocks, size) for size in blocks)
            )
            in_order |= _ranges_meet(query_range, key_range)
        overlap &= in_order
    if first_visible is not None:
        first, _ = _value_range(split_into_blocks(first_visible, blocks[0]), query_blocks > 0)  # [r, m]
        last_key = np.arange(1, key_blocks.shape[1] + 1, dtype=np.int32) * blocks[1] - 1  # [n]
        overlap &= first[:, :, None] <= jnp.asarray(last_key)[None, None, :]
    return overlap


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
