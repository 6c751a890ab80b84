"""Which keys each query attends to in rows that several samples share."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jaxtyping import Array, Bool, Int

from pallas_kernels.packed_attention.block_pairs import default_block_size, find_block_pairs
from pallas_kernels.packed_attention.token_ids import TokenIds, visibility

MAX_DENSE_PAIRS = 128 * 128
"""Queries times keys of a row up to which attention is dense: blocks gain little there, and take longer to compile."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SegmentMask:
    """Which keys each query attends to; `make_segment_mask` makes one, once for all layers that share it.

    Attributes:
        queries, keys: Ids of the tokens of each side, `[r, s]` and `[r, t]`.
        first_visible: Place in the row before which each query attends to nothing but its block: int `[r, s]`; None
            without a window.
        window: How many positions, itself included, a position attends to outside of its block: int32 scalar; None
            without a window.
        block_pairs: The `BlockPairs` that overlap, for rows of more than `MAX_DENSE_PAIRS`; else None.
    """

    queries: TokenIds
    keys: TokenIds
    first_visible: Any = None
    window: Any = None
    block_pairs: Any = None

    @property
    def is_causal(self) -> bool:
        """Whether a position attends only to itself, the positions before it, and the positions of its block."""
        return self.queries.order is not None


jax.tree_util.register_dataclass(SegmentMask, ["queries", "keys", "first_visible", "window", "block_pairs"], [])


def make_segment_mask(
    segments: jax.Array | np.ndarray,
    *,
    keys: jax.Array | np.ndarray | None = None,
    branches: jax.Array | np.ndarray | None = None,
    causal: bool = False,
    blocks: jax.Array | np.ndarray | None = None,
    positions: jax.Array | np.ndarray | None = None,
    window: int | None = None,
    ordered: bool = True,
    block: int | None = None,
) -> SegmentMask:
    """The mask of packed rows.

    A position attends to the positions of its own segment; with `causal` only to the positions up to itself and, with
    `blocks`, to all of its own block (of an image, say, in a text); with `branches` only to the trunk (branch 0) and to
    its own branch; with a `window`, outside of its block, only to positions fewer than `window` before it. Padding,
    segment 0, attends to nothing, and nothing attends to it.

    Args:
        segments: `[r, s]`, whole numbers: the segment of each query. Positions of one segment are adjacent, and
            segments are in ascending order; padding may be anywhere.
        keys: `[r, t]`, the segments of the keys where these are not the queries'; without branches, and not causal.
        branches: `[r, s]`, whole numbers.
        causal: Whether a position attends only to itself, the positions before it, and the positions of its block.
        blocks: `[r, s]`, whole numbers: positions of a segment with one number above 0 attend to each other both ways,
            as far as branches allow and whatever the window; needs `causal`.
        positions: `[r, s]`, the position of each token in its segment, from 0 on, where a branch continues from the end
            of the trunk; for a window.
        window: How many positions, itself included, a position attends to; needs `positions` and `causal`.
        ordered: Whether segments are in ascending order and their positions adjacent. If not, more blocks are computed,
            the segments between the least and the greatest one of a block.
        block: Positions of a block; by default the size that was fastest where it was measured.

    Raises:
        ValueError: The shapes or types do not fit, or segments are out of order. The latter is checked only for arrays
            whose values are known, NumPy arrays and arrays outside `jit`; it costs time but changes no result.
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
    if blocks is not None:
        _check_ids("blocks", blocks, segments)
        if blocks.shape != segments.shape or not causal:
            raise ValueError(
                f"blocks {_describe(blocks)} need causal attention (causal is {causal}) and one for each position of "
                f"segments {_describe(segments)}"
            )
    for name, ids in (("segments", segments), ("keys", key_segments)) if ordered else ():
        _check_order(name, ids)
    if window is not None:
        _check_window(window, causal, positions, segments)
    places = jnp.arange(segments.shape[1], dtype=jnp.int32)
    shared = TokenIds(
        segments=jnp.asarray(segments),
        branches=None if branches is None else jnp.asarray(branches),
        order=jnp.broadcast_to(places, segments.shape) if causal else None,
        blocks=None if blocks is None else jnp.asarray(blocks),
        positions=None if window is None else jnp.asarray(positions),
    )
    mask = SegmentMask(
        queries=shared,
        keys=shared if keys is None else TokenIds(jnp.asarray(keys)),
        first_visible=None if window is None else first_visible_places(shared, window),
        window=None if window is None else jnp.int32(window),
    )
    if block is None and segments.shape[1] * key_segments.shape[1] <= MAX_DENSE_PAIRS:
        return mask
    return with_block_pairs(mask, block)


def with_block_pairs(mask: SegmentMask, block: int | None = None) -> SegmentMask:
    """The mask with the pairs of blocks that overlap; `block` positions each, or the default for the row."""
    lengths = (mask.queries.segments.shape[1], mask.keys.segments.shape[1])
    query_block, key_block = (block or default_block_size(length) for length in lengths)
    pairs = find_block_pairs(mask.queries, mask.keys, mask.first_visible, (query_block, key_block))
    return dataclasses.replace(mask, block_pairs=pairs)


def first_visible_places(ids: TokenIds, window: int) -> Int[Array, "r s"]:
    """Place in the row of the first position that each query may attend to within a window, or an earlier one.

    It is exact but for the tokens of branches whose window does not reach the trunk.
    """
    segments = ids.segments
    places = jnp.arange(segments.shape[1], dtype=jnp.int32)[None]  # [1, s]
    highest_before = jnp.pad(lax.cummax(segments, axis=1)[:, :-1], ((0, 0), (1, 0)))  # segments are in ascending order
    first_of_segment = lax.cummax(jnp.where(segments > highest_before, places, 0), axis=1)
    return first_of_segment + jnp.maximum(ids.positions - window + 1, 0)


def dense_mask(mask: SegmentMask) -> Bool[Array, "r s t"]:
    """The mask of every pair of positions: quadratic in the row."""
    return visibility(mask.queries, mask.keys, mask.window)


def _check_ids(name: str, ids: jax.Array | np.ndarray, segments: jax.Array | np.ndarray) -> None:
    if ids.ndim != 2 or not jnp.issubdtype(ids.dtype, jnp.integer):
        raise ValueError(f"{name} are {_describe(ids)}; give whole numbers [rows, positions]")
    if ids.shape[0] != segments.shape[0]:
        raise ValueError(f"{name} are {_describe(ids)} and segments {_describe(segments)}; give as many rows")


def _check_window(
    window: int, causal: bool, positions: jax.Array | np.ndarray | None, segments: jax.Array | np.ndarray
) -> None:
    if window < 1:
        raise ValueError(f"window is {window}; a position attends at least to itself, so give 1 or more")
    if positions is None or positions.shape != segments.shape or not causal:
        given = "none" if positions is None else _describe(positions)
        raise ValueError(
            f"window {window} needs causal attention (causal is {causal}) and positions for segments "
            f"{_describe(segments)}; positions are {given}"
        )


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
