"""Ids of tokens that decide whether a query attends to a key, read by masks, lists of block pairs and kernels."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


class TokenIds(NamedTuple):
    """The ids of queries or of keys, which decide whether a query attends to a key.

    Attributes:
        segments: Segment of each token, 0 for padding.
        branches: Branch of each token within its segment, 0 for the trunk; None where there are none.
        order: Place in the row of each token; None where attention is not causal.
        blocks: Block of each token within its segment, 0 for none; None where there are none.
        positions: Position of each token in its segment; None without a window.
    """

    segments: Any
    branches: Any = None
    order: Any = None
    blocks: Any = None
    positions: Any = None


def visibility(queries: TokenIds, keys: TokenIds, window: Int[Array, ""] | None) -> Bool[Array, "*r s t"]:
    """Which keys each query attends to.

    Args:
        queries: Ids of the queries, each `[*r, s]`.
        keys: Ids of the keys, each `[*r, t]`.
        window: See `SegmentMask`.
    """
    query, key = (
        jax.tree.map(lambda ids, axis=axis: jnp.expand_dims(ids, axis), side)
        for side, axis in ((queries, -1), (keys, -2))
    )
    visible = (query.segments == key.segments) & (query.segments > 0)
    if query.branches is not None:
        visible &= (key.branches == 0) | (query.branches == key.branches)
    attended = jnp.bool_(True)
    if query.order is not None:
        attended &= key.order <= query.order
    if window is not None:
        attended &= query.positions - key.positions < window
    if query.blocks is not None:
        attended |= (query.blocks == key.blocks) & (query.blocks > 0)
    return visible & attended
