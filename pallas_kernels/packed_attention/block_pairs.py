"""Which blocks of queries have to look at which blocks of keys."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Int

LONG = 8192


@dataclasses.dataclass(frozen=True)
class BlockPairs:
    """The pairs of blocks that touch: 4 bytes a pair that there might be.

    Attributes:
        order: Numbers of pairs, int32 `[r * m * n]`: `(row * m + block of queries) * n + block of keys` of m and n
            blocks a row; first those that touch, in order.
        count: How many of them touch.
        blocks: Queries and keys of a block.
    """

    order: Any
    count: Any
    blocks: tuple[int, int]


jax.tree_util.register_dataclass(BlockPairs, ["order", "count"], ["blocks"])


def default_block_size(length: int) -> int:
    """Positions of a block of a row: 64, and 128 in long rows, whose list of pairs would else be the larger part."""
    return min(64 if length <= LONG else 128, length)


def find_block_pairs(
    queries: Int[Array, "r s"],
    keys: Int[Array, "r t"],
    branches: Int[Array, "r s"] | None,
    causal: bool,
    blocks: tuple[int, int],
) -> BlockPairs:
    """The pairs of blocks that touch."""
    touching = blocks_overlap(queries, keys, branches, causal, blocks).reshape(-1)
    numbers = jnp.arange(touching.size, dtype=jnp.int32)
    order = lax.sort(jnp.where(touching, numbers, touching.size))
    return BlockPairs(jnp.minimum(order, touching.size - 1), jnp.sum(touching, dtype=jnp.int32), blocks)


def blocks_overlap(
    queries: Int[Array, "r s"],
    keys: Int[Array, "r t"],
    branches: Int[Array, "r s"] | None,
    causal: bool,
    blocks: tuple[int, int],
) -> Bool[Array, "r m n"]:
    """Whether a query of one block may see a key of another.

    All pairs that have to be looked at, whatever the order of the segments; and no others where these are in order and
    there are no branches.
    """
    mine, theirs = split_into_blocks(queries, blocks[0]), split_into_blocks(keys, blocks[1])
    touching = _overlap(_extent(mine, mine > 0), _extent(theirs, theirs > 0))
    if branches is not None:
        of_queries = _extent(split_into_blocks(branches, blocks[0]), mine > 0)
        of_keys = _extent(split_into_blocks(branches, blocks[1]), theirs > 0)
        touching &= (of_keys[0] == 0)[:, None, :] | _overlap(of_queries, of_keys)
    if causal:
        last = np.arange(1, mine.shape[1] + 1) * blocks[0] - 1
        touching &= jnp.asarray((np.arange(theirs.shape[1]) * blocks[1])[None, None, :] <= last[None, :, None])
    return touching


def split_into_blocks(ids: Int[Array, "r s"], block: int) -> Int[Array, "r m block"]:
    """Rows in blocks, with zeros behind where they do not divide."""
    rows, length = ids.shape
    return jnp.pad(ids, ((0, 0), (0, -length % block))).reshape(rows, -1, block)


def _extent(ids: Int[Array, "r m block"], real: Bool[Array, "r m block"]) -> tuple[Array, Array]:
    """The least and the greatest in each block; the greater first where nothing is real."""
    low, high = jnp.iinfo(ids.dtype).min, jnp.iinfo(ids.dtype).max
    return jnp.min(jnp.where(real, ids, high), axis=-1), jnp.max(jnp.where(real, ids, low), axis=-1)


def _overlap(mine: tuple[Array, Array], theirs: tuple[Array, Array]) -> Bool[Array, "r m n"]:
    first = jnp.maximum(mine[0][:, :, None], theirs[0][:, None, :])
    return first <= jnp.minimum(mine[1][:, :, None], theirs[1][:, None, :])
