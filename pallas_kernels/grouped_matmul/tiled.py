"""The grouped matmul in plain XLA, tile by tile of rows: the arithmetic of the groups, and the padding of their tiles.

It runs on every backend. A group of n rows is ceil(n / t) tiles of t rows; a loop multiplies one tile after the other
with the matrix of its group. The number of iterations is static: as many tiles as all rows can have, whatever the sizes
of the groups are, so rows behind the last group cost as much as others.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from pallas_kernels.varying import zeros_as

MIN_TILE_ROWS, MAX_TILE_ROWS = 8, 512
PADDED_SHARE = 8
"""Tiles have at most this fraction of the mean rows of a group, so that padding adds at most an eighth."""


class Tiles(NamedTuple):
    """The n tiles of some groups of rows; unused ones, at the end, have no rows and begin behind all rows.

    Attributes:
        groups: Group of each tile; of an unused one, the group of the last one before it that is used.
        starts: First row of each tile.
        sizes: Rows of the tile that are of its group: the first ones.
        is_first: Whether it is the first tile of its group.
    """

    groups: Int[Array, " n"]
    starts: Int[Array, " n"]
    sizes: Int[Array, " n"]
    is_first: Bool[Array, " n"]


def tile_rows(rows: int, groups: int) -> int:
    """Rows of a tile: a power of two."""
    most = rows // (PADDED_SHARE * groups)
    return min(max(1 << max(most.bit_length() - 1, 0), MIN_TILE_ROWS), MAX_TILE_ROWS)


def tile_count(rows: int, groups: int, size: int) -> int:
    """The most tiles of `size` rows that some rows in some groups can have: sum of ceil(n / size)."""
    return (rows + groups * (size - 1)) // size


def make_tiles(group_sizes: Int[Array, " g"], rows: int, size: int) -> Tiles:
    """Divides groups of rows, which lie one after another, into tiles of `size` rows."""
    counts = -(-group_sizes // size)  # [g]
    ends, group_starts = jnp.cumsum(counts), jnp.cumsum(group_sizes) - group_sizes
    tile = jnp.arange(tile_count(rows, len(group_sizes), size), dtype=group_sizes.dtype)
    groups = jnp.searchsorted(ends, jnp.minimum(tile, ends[-1] - 1), side="right")  # unused: of the last used tile
    within = (tile - (ends - counts)[groups]) * size  # rows of the group before the tile
    is_used = tile < ends[-1]
    return Tiles(
        groups=groups,
        starts=jnp.where(is_used, group_starts[groups] + within, rows),
        sizes=jnp.where(is_used, jnp.minimum(group_sizes[groups] - within, size), 0),
        is_first=is_used & (within == 0),
    )


def product(
    x: Float[Array, "m k"], matrices: Float[Array, "g ..."], group_sizes: Int[Array, " g"], *, transposed: bool = False
) -> Float[Array, "m n"]:
    """Each group of rows times its matrix `[k, n]`, or the transpose of its matrix `[n, k]`.

    A tile writes all its t rows. Rows of the next group are written again by that group's own tiles, which come later.
    """
    rows = len(x)
    size = tile_rows(rows, len(group_sizes))
    padded = _pad_rows(x, size)  # [m + t, k]
    dimensions = (((1,), (1 if transposed else 0,)), ((), ()))

    def multiply(y: jax.Array, tile: Tiles) -> tuple[jax.Array, None]:
        operand = lax.dynamic_slice_in_dim(padded, tile.starts, size)  # [t, k]
        matrix = lax.dynamic_index_in_dim(matrices, tile.groups, keepdims=False)
        block = lax.dot_general(operand, matrix, dimensions, preferred_element_type=jnp.float32)  # [t, n]
        return lax.dynamic_update_slice_in_dim(y, block.astype(y.dtype), tile.starts, axis=0), None

    y = zeros_as(x, shape=(rows + size, matrices.shape[1 if transposed else 2]), dtype=x.dtype)
    return lax.scan(multiply, y, make_tiles(group_sizes, rows, size))[0][:rows]


def outer_product(
    x: Float[Array, "m k"], y: Float[Array, "m n"], group_sizes: Int[Array, " g"]
) -> Float[Array, "g k n"]:
    """The sum over the rows of each group of x_row^T y_row, in float32 until it is complete."""
    (rows, inner), outer = x.shape, y.shape[1]
    size = tile_rows(rows, len(group_sizes))
    padded_x, padded_y = (_pad_rows(operand, size) for operand in (x, y))

    def add(carry: tuple[jax.Array, jax.Array], tile: Tiles) -> tuple[tuple[jax.Array, jax.Array], None]:
        sums, total = carry  # [g, k, n], [k, n]
        is_of_group = (jnp.arange(size) < tile.sizes)[:, None]
        of_x, of_y = (  # both: a row of another group may hold anything, even infinity
            jnp.where(is_of_group, lax.dynamic_slice_in_dim(operand, tile.starts, size), jnp.zeros((), operand.dtype))
            for operand in (padded_x, padded_y)
        )
        block = lax.dot_general(of_x, of_y, (((0,), (0,)), ((), ())), preferred_element_type=jnp.float32)
        total = jnp.where(tile.is_first, block, total + block)
        written = lax.dynamic_update_index_in_dim(sums, total.astype(sums.dtype), tile.groups, axis=0)
        return (written, total), None

    start = (
        zeros_as(x, shape=(len(group_sizes), inner, outer), dtype=x.dtype),
        zeros_as(x, shape=(inner, outer), dtype=jnp.float32),
    )
    return lax.scan(add, start, make_tiles(group_sizes, rows, size))[0][0]


def _pad_rows(x: Float[Array, "m k"], count: int) -> Float[Array, "n k"]:
    """Appends rows of zeros."""
    return jnp.concatenate([x, zeros_as(x, shape=(count, x.shape[1]), dtype=x.dtype)])
