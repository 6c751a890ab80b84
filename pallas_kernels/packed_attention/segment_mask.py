"""Which keys each query attends to in rows that several samples share."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jaxtyping import Array, Bool, Int

from pallas_kernels.packed_attention.block_pairs import default_block_size, find_block_pairs

MAX_DENSE_PAIRS = 256 * 256
"""Queries times keys of a row up to which attention is dense: blocks gain little there, and take longer to compile."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SegmentMask:
    """Which keys each query attends to; `make_segment_mask` makes one, once for all layers that share it.

    Attributes:
        query_segments, key_segments: Segment of each position, 0 for padding: int `[r, s]` and `[r, t]`.
        branches: Branch of each position within its segment, 0 for the trunk: int `[r, s]`; None without branches.
        blocks: Block within its segment of each position, 0 for none: int `[r, s]`; None without blocks.
        positions: Position in its segment of each token: int `[r, s]`; None without a window.
        window: How many positions, itself included, a position attends to: int32 scalar; None without a window.
        block_pairs: The `BlockPairs` that overlap, for rows of more than `MAX_DENSE_PAIRS`; else None.
        causal: Whether a position attends only to itself, the positions before it, and those of its block.
    """

    query_segments: Any
    key_segments: Any
    branches: Any = None
    blocks: Any = None
    positions: Any = None
    window: Any = None
    block_pairs: Any = None
    causal: bool = False


jax.tree_util.register_dataclass(
    SegmentMask,
    ["query_segments", "key_segments", "branches", "blocks", "positions", "window", "block_pairs"],
    ["causal"],
)


class TokenIds(NamedTuple):
    """What decides whether a query attends to a key, of the queries or of the keys.

    Attributes:
        segments: Segment of each.
        branches: Branch of each; None where there are none.
        order: Place in the row of each; None where attention is not causal.
        blocks: Block of each within its segment; None where there are none.
        positions: Position in its segment of each; None without a window.
    """

    segments: Any
    branches: Any = None
    order: Any = None
    blocks: Any = None
    positions: Any = None


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

    A position attends to the positions of its own segment; with `causal` only to those up to itself and, with `blocks`,
    to all of its own block (of an image, say, in a text); with `branches` only to the trunk (branch 0) and to its own
    branch; with a `window` only to those fewer than `window` positions before it. Padding, segment 0, attends to
    nothing, and nothing attends to it.

    Args:
        segments: `[r, s]`, whole numbers: the segment of each query. Positions of one segment are adjacent, and
            segments are in ascending order; padding may be anywhere.
        keys: `[r, t]`, the segments of the keys where these are not the queries'; without branches, and not causal.
        branches: `[r, s]`, whole numbers.
        causal: Whether a position attends only to itself, the positions before it, and those of its block.
        blocks: `[r, s]`, whole numbers: positions of a segment with one number above 0 attend to each other both ways,
            as far as branches and window allow; needs `causal`.
        positions: `[r, s]`, the position of each token in its segment, from 0 on, where a branch continues from the end
            of the trunk; for a window.
        window: How many positions, itself included, a position attends to; needs `positions` and `causal`.
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
    mask = SegmentMask(
        query_segments=jnp.asarray(segments),
        key_segments=jnp.asarray(key_segments),
        branches=None if branches is None else jnp.asarray(branches),
        blocks=None if blocks is None else jnp.asarray(blocks),
        positions=None if window is None else jnp.asarray(positions),
        window=None if window is None else jnp.int32(window),
        causal=causal,
    )
    if block is None and segments.shape[1] * key_segments.shape[1] <= MAX_DENSE_PAIRS:
        return mask
    return with_block_pairs(mask, block)


def with_block_pairs(mask: SegmentMask, block: int | None = None) -> SegmentMask:
    """The mask with the pairs of blocks that overlap; `block` positions each, or the default for the row."""
    sides = (mask.query_segments, mask.key_segments)
    query_block, key_block = (block or default_block_size(ids.shape[1]) for ids in sides)
    pairs = find_block_pairs(
        mask.query_segments,
        mask.key_segments,
        mask.branches,
        first_visible_places(mask),
        mask.blocks,
        causal=mask.causal,
        blocks=(query_block, key_block),
    )
    return dataclasses.replace(mask, block_pairs=pairs)


def first_visible_places(mask: SegmentMask) -> Int[Array, "r s"] | None:
    """Place in the row of the first position that each query may attend to, or an earlier one; None without a window.

    It is exact but for the tokens of branches whose window does not reach the trunk.
    """
    if mask.window is None:
        return None
    segments = mask.query_segments
    places = jnp.arange(segments.shape[1], dtype=jnp.int32)[None]  # [1, s]
    highest_before = jnp.pad(lax.cummax(segments, axis=1)[:, :-1], ((0, 0), (1, 0)))  # segments are in ascending order
    first_of_segment = lax.cummax(jnp.where(segments > highest_before, places, 0), axis=1)
    return first_of_segment + jnp.maximum(mask.positions - mask.window + 1, 0)


def mask_ids(mask: SegmentMask) -> tuple[TokenIds, TokenIds]:
    """What decides whether a query attends to a key: of the queries `[r, s]`, and of the keys `[r, t]`."""
    shape = mask.query_segments.shape
    order = jnp.broadcast_to(jnp.arange(shape[1], dtype=jnp.int32), shape) if mask.causal else None
    shared = (mask.branches, order, mask.blocks, mask.positions)
    return TokenIds(mask.query_segments, *shared), TokenIds(mask.key_segments, *shared)


def dense_mask(mask: SegmentMask) -> Bool[Array, "r s t"]:
    """The mask of every pair of positions: quadratic in the row."""
    return visibility(*mask_ids(mask), mask.window)


def visibility(queries: TokenIds, keys: TokenIds, window: Int[Array, ""] | None) -> Bool[Array, "*r s t"]:
    """Which keys each query attends to.

    Args:
        queries: Of the queries, each `[*r, s]`.
        keys: Of the keys, each `[*r, t]`.
        window: See `SegmentMask`.
    """
    query = TokenIds(*(None if ids is None else ids[..., :, None] for ids in queries))
    key = TokenIds(*(None if ids is None else ids[..., None, :] for ids in keys))
    visible = (query.segments == key.segments) & (query.segments > 0)
    if query.branches is not None:
        visible &= (key.branches == 0) | (query.branches == key.branches)
    if query.order is not None:
        in_order = key.order <= query.order
        if query.blocks is not None:
            in_order |= (query.blocks == key.blocks) & (query.blocks > 0)
        visible &= in_order
    if window is not None:
        visible &= query.positions - key.positions < window
    return visible


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
