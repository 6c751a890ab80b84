"""Attention by heads where ranks divide the positions of a row: an all-to-all before it and one after it.

Each rank trades the positions that it has, for all heads, for all positions of some heads, computes their attention as
on one device, and trades back (DeepSpeed-Ulysses, arXiv 2309.14509). It sends less than a ring where a row is long and
any implementation can compute it, but the ranks must divide the key-value heads.
"""

import dataclasses

import jax
from jax import lax

from pallas_kernels.packed_attention.segment_mask import SegmentMask
from pallas_kernels.packed_attention.zigzag import from_zigzag, to_zigzag
from pallas_kernels.varying import rank_count


@dataclasses.dataclass(frozen=True)
class HeadExchangeMask:
    """Which keys each query attends to, where ranks that divide positions trade them for heads.

    Attributes:
        whole: The mask of whole rows, the same on all ranks.
        axes: Mesh axes of the ranks.
    """

    whole: SegmentMask
    axes: tuple[str, ...]


jax.tree_util.register_dataclass(HeadExchangeMask, ["whole"], ["axes"])


def to_heads(x: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    """This rank's positions of all heads `[r, q, h, e]` -> all positions, in order, of its heads `[r, s, h / n, e]`.

    Raises:
        ValueError: The ranks do not divide the heads.
    """
    ranks, heads = rank_count(axes), x.shape[2]
    if heads % ranks:
        raise ValueError(
            f"{ranks} context-parallel ranks do not divide {heads} heads of a tensor rank; use a ring, or fewer ranks"
        )
    return from_zigzag(lax.all_to_all(x, axes, split_axis=2, concat_axis=1, tiled=True), ranks)


def to_positions(x: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    """The inverse of `to_heads`."""
    return lax.all_to_all(to_zigzag(x, rank_count(axes)), axes, split_axis=1, concat_axis=2, tiled=True)


def heads_of_rank(x: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    """This rank's heads of `[h]`."""
    count = x.shape[0] // rank_count(axes)
    return lax.dynamic_slice_in_dim(x, lax.axis_index(axes) * count, count)
