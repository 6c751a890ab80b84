"""Which keys each query attends to in rows that several samples share."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Int

from pallas_kernels.packed_attention.block_pairs import default_block_size, find_block_pairs

MAX_DENSE_PAIRS = 256 * 256
"""Queries times keys of a row up to which attention is dense: blocks gain little there, and take longer to compile."""


@dataclasses.dataclass(frozen=True)
class SegmentMask:
    """Which keys each query attends to; `make_segment_mask` makes one, once for all layers that share it.

    Attributes:
        query_segments, key_segments: Segment of each position, 0 for padding: int `[r, s]` and `[r, t]`.
        branches: Branch of each position within its segment, 0 for the trunk: int `[r, s]`; None without branches.
        block_pairs: The `BlockPairs` that overlap, for rows of more than `MAX_DENSE_PAIRS`; else None.
        causal: Whether a position attends only to itself and the positions before it.
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
    ordered: bool = True,
    block: int | None = None,
) -> SegmentMask:
    """The mask of packed rows.

    A position attends to the positions of its own segment; with `causal` only to those up to itself; with `branches`
    only to the trunk (branch 0) and to its own branch. Padding, segment 0, attends to nothing, and nothing attends to
    it.

    Args:
        segments: `[r, s]`, whole numbers: the segment of each query. Positions of one segment are adjacent, and
            segments are in ascending order; padding may be anywhere.
        keys: `[r, t]`, the segments of the keys where these are not the queries'; without branches, and not causal.
        branches: `[r, s]`, whole numbers.
        causal: Whether a position attends only to itself and the positions before it.
        ordered: Whether segments are in ascending order and their positions adjacent. If not, more blocks are computed,
            those between the least and the greatest segment of a block.
        block: Positions of a block; by default the size that was fastest where it was measured.

    Raises:
        ValueError: The shapes or types do not fit, or segments are out of order. The latter is checked only for arrays
            whose values are known, those of NumPy and those outside `jit`; it costs time but changes no result.
    """
    key_segments = segments if keys is None else keys
    _check_ids("segments", segments, segments)
    _check_ids("keys", key_segments, segments)
    if keys is not None and (causal or branches is not None):
        raise ValueError(
            f"queries {_describe(segments)} have other keys {_describe(keys)}: "
            "these can be neither causal nor in branches"
        )
    if branches is not None:
        _check_ids("branches", branches, segments)
        if branches.shape != segments.shape:
            raise ValueError(
                f"branches are {_describe(branches)} and segments {_describe(segments)}; give one for each position"
            )
    for name, ids in (("segments", segments), ("keys", key_segments)) if ordered else ():
        _check_order(name, ids)
    query_segments, key_segments = jnp.asarray(segments), jnp.asarray(key_segments)
    branches = None if branches is None else jnp.asarray(branches)
    if block is None and query_segments.shape[1] * key_segments.shape[1] <= MAX_DENSE_PAIRS:
        return SegmentMask(query_segments, key_segments, branches, None, causal)
    query_block, key_block = (block or default_block_size(ids.shape[1]) for ids in (query_segments, key_segments))
    pairs = find_block_pairs(query_segments, key_segments, branches, causal, (query_block, key_block))
    return SegmentMask(query_segments, key_segments, branches, pairs, causal)


def dense_mask(mask: SegmentMask) -> Bool[Array, "r s t"]:
    """The mask of every pair of positions: quadratic in the row."""
    order = jnp.arange(mask.query_segments.shape[1], dtype=jnp.int32)[None]  # [1, s]
    positions = (order, order) if mask.causal else None
    branches = None if mask.branches is None else (mask.branches, mask.branches)
    return visibility((mask.query_segments, mask.key_segments), branches, positions)


def visibility(
    segments: tuple[Int[Array, "*r s"], Int[Array, "*r t"]],
    branches: tuple[Int[Array, "*r s"], Int[Array, "*r t"]] | None,
    positions: tuple[Int[Array, "*#r s"], Int[Array, "*#r t"]] | None,
) -> Bool[Array, "*r s t"]:
    """Which keys each query attends to.

    Args:
        segments: Of the queries and of the keys.
        branches, positions: Likewise, where they matter.
    """
    query_segments, key_segments = segments[0][..., :, None], segments[1][..., None, :]
    visible = (query_segments == key_segments) & (query_segments > 0)
    if branches is not None:
        query_branches, key_branches = branches[0][..., :, None], branches[1][..., None, :]
        visible &= (key_branches == 0) | (query_branches == key_branches)
    if positions is not None:
        visible &= positions[1][..., None, :] <= positions[0][..., :, None]
    return visible


def _check_ids(name: str, ids: jax.Array | np.ndarray, segments: jax.Array | np.ndarray) -> None:
    if ids.ndim != 2 or not jnp.issubdtype(ids.dtype, jnp.integer):
        raise ValueError(f"{name} are {_describe(ids)}; give whole numbers [rows, positions]")
    if ids.shape[0] != segments.shape[0]:
        raise ValueError(f"{name} are {_describe(ids)} and segments {_describe(segments)}; give as many rows")


def _check_order(name: str, ids: jax.Array | np.ndarray) -> None:
    is_known = isinstance(ids, np.ndarray) or (not isinstance(ids, Tracer) and ids.is_fully_addressable)
    if not is_known:
        return
    for number, row in enumerate(np.asarray(ids)):
        real = row[row != 0]
        if np.any(real < 0) or np.any(real[1:] < real[:-1]):
            raise ValueError(
                f"{name} {_describe(ids)} are out of order in row {number}; "
                "number the segments of a row 1, 2, ... in the order in which they stand"
            )


def _describe(ids: jax.Array | np.ndarray) -> str:
    return f"{ids.dtype}{list(ids.shape)}"
