"""Who sees whom in rows that several samples share."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from pallas_kernels.packed_attention.block_pairs import default_block_size, find_block_pairs

MAX_DENSE_PAIRS = 256 * 256
"""Queries times keys of a row up to which the dense form serves: blocks gain little there, and compile longer."""


@dataclasses.dataclass(frozen=True)
class SegmentMask:
    """Who sees whom; `pack` makes one, once for all layers that share it.

    Attributes:
        queries, keys: Number of each position's segment, 0 for padding: int `[r, s]` and `[r, t]`.
        branches: Number of each position's branch in its segment, 0 for the trunk: int `[r, s]`; None without branches.
        pairs: The `Pairs` of blocks that touch, for rows that are not short; else None.
        causal: Whether a position sees only what does not stand behind it.
    """

    query_segments: Any
    key_segments: Any
    branches: Any
    block_pairs: Any
    causal: bool


jax.tree_util.register_dataclass(SegmentMask, ["query_segments", "key_segments", "branches", "block_pairs"], ["causal"])


def make_segment_mask(
    segments: jax.Array | np.ndarray,
    *,
    keys: jax.Array | np.ndarray | None = None,
    branches: jax.Array | np.ndarray | None = None,
    causal: bool = False,
    block: int | None = None,
) -> SegmentMask:
    """Who sees whom, from the segments.

    A position sees the positions of its own segment; with `causal` only those up to itself; with `branches` only the
    trunk (branch 0) and its own branch. Padding, segment 0, sees nothing and is not seen.

    Args:
        segments: `[r, s]`, whole numbers, of the queries: the same for the positions of one segment, which are adjacent
            and in order, with padding anywhere.
        keys: `[r, t]`, likewise of the keys where these are others; without branches, and not causal.
        branches: `[r, s]`, whole numbers.
        block: Positions of a block; by default what was fastest where it was measured.

    Raises:
        ValueError: The shapes or types do not fit; or the segments are out of order. The latter can be seen, and is,
            only in arrays whose values are known: in NumPy's, and outside `jit`. It makes the work more, never wrong.
    """
    theirs = segments if keys is None else keys
    _check_ids("segments", segments, segments)
    _check_ids("keys", theirs, segments)
    if keys is not None and (causal or branches is not None):
        raise ValueError(f"queries {_of(segments)} see keys of their own {_of(keys)}: not causally, nor by branch")
    if branches is not None:
        _check_ids("branches", branches, segments)
        if branches.shape != segments.shape:
            raise ValueError(f"branches are {_of(branches)} and segments {_of(segments)}; give one for each position")
    for name, ids in (("segments", segments), ("keys", theirs)):
        _check_order(name, ids)
    queries, theirs = jnp.asarray(segments), jnp.asarray(theirs)
    branches = None if branches is None else jnp.asarray(branches)
    if block is None and queries.shape[1] * theirs.shape[1] <= MAX_DENSE_PAIRS:
        return SegmentMask(queries, theirs, branches, None, causal)
    blocks = tuple(block or default_block_size(ids.shape[1]) for ids in (queries, theirs))
    return SegmentMask(queries, theirs, branches, find_block_pairs(queries, theirs, branches, causal, blocks), causal)


def dense_mask(packing: SegmentMask) -> Bool[Array, "r s t"]:
    """Which keys each query sees, as a table: quadratic in the row."""
    order = jnp.arange(packing.query_segments.shape[1], dtype=jnp.int32)[None]
    places = (order, order) if packing.causal else None
    both = None if packing.branches is None else (packing.branches, packing.branches)
    return visibility((packing.query_segments, packing.key_segments), both, places)


def visibility(
    segments: tuple[Int[Array, "*r s"], Int[Array, "*r t"]],
    branches: tuple[Int[Array, "*r s"], Int[Array, "*r t"]] | None,
    places: tuple[Int[Array, "*#r s"], Int[Array, "*#r t"]] | None,
) -> Bool[Array, "*r s t"]:
    """Which keys each query sees, given both sides' segments and, where they count, branches and places."""
    mine, theirs = segments[0][..., :, None], segments[1][..., None, :]
    mask = (mine == theirs) & (mine > 0)
    if branches is not None:
        mine, theirs = branches[0][..., :, None], branches[1][..., None, :]
        mask &= (theirs == 0) | (mine == theirs)
    if places is not None:
        mask &= places[1][..., None, :] <= places[0][..., :, None]
    return mask


def _check_ids(name: str, ids: jax.Array | np.ndarray, segments: jax.Array | np.ndarray) -> None:
    if ids.ndim != 2 or not jnp.issubdtype(ids.dtype, jnp.integer):
        raise ValueError(f"{name} are {_of(ids)}; give whole numbers [rows, positions]")
    if ids.shape[0] != segments.shape[0]:
        raise ValueError(f"{name} are {_of(ids)} and segments {_of(segments)}; give as many rows")


def _check_order(name: str, ids: jax.Array | np.ndarray) -> None:
    known = isinstance(ids, np.ndarray) or (not isinstance(ids, jax.core.Tracer) and ids.is_fully_addressable)
    if not known:
        return
    for number, row in enumerate(np.asarray(ids)):
        real = row[row != 0]
        if np.any(real < 0) or np.any(real[1:] < real[:-1]):
            raise ValueError(
                f"{name} {_of(ids)} are out of order in row {number}; number a row's segments 1, 2, ... as they stand"
            )


def _of(ids: jax.Array | np.ndarray) -> str:
    return f"{ids.dtype}{list(ids.shape)}"
