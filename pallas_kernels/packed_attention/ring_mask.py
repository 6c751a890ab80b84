"""The masks of ring attention: of this rank's queries and the keys of every rank, in the order in which they arrive."""

import dataclasses
from typing import Any

import jax
from jax import lax

from pallas_kernels.packed_attention.block_pairs import default_block_size, find_block_pairs
from pallas_kernels.packed_attention.segment_mask import SegmentMask
from pallas_kernels.packed_attention.token_ids import TokenIds
from pallas_kernels.packed_attention.zigzag import split_zigzag, to_zigzag
from pallas_kernels.varying import rank_count


@dataclasses.dataclass(frozen=True)
class RingMask:
    """Which keys each of this rank's queries attends to, where ranks divide the positions of a row.

    Attributes:
        steps: By step of the ring the mask with the keys that are here then: first this rank's own, then the keys of
            the rank before it, and so on.
        axes: Mesh axes of the ranks.
    """

    steps: tuple[SegmentMask, ...]
    axes: tuple[str, ...]

    @property
    def queries(self) -> TokenIds:
        """Ids of this rank's queries."""
        return self.steps[0].queries

    @property
    def keys(self) -> TokenIds:
        """Ids of this rank's keys."""
        return self.steps[0].keys


jax.tree_util.register_dataclass(RingMask, ["steps"], ["axes"])


def make_ring_mask(mask: SegmentMask, axes: tuple[str, ...], block: int | None = None) -> RingMask:
    """Returns the masks of a rank, given the mask of whole rows.

    Every rank knows the ids of the whole row, 4 bytes each, so that only keys and values are sent around the ring.

    Args:
        mask: The mask of whole rows, the same on all ranks, without pairs of blocks.
        axes: Mesh axes of the ranks.
        block: Positions of a block; by default the size that was fastest for rows of a rank's length.

    Raises:
        ValueError: The ranks do not divide the positions.
    """
    ranks = rank_count(axes)
    local = mask.queries.segments.shape[1] // ranks
    size = block or default_block_size(local)
    queries = jax.tree.map(lambda ids: split_zigzag(ids, axes), mask.queries)
    first_visible = None if mask.first_visible is None else split_zigzag(mask.first_visible, axes)
    all_keys = jax.tree.map(lambda ids: to_zigzag(ids, ranks), mask.keys)

    def step_mask(step: int) -> SegmentMask:
        start = (lax.axis_index(axes) - step) % ranks * local
        keys: Any = jax.tree.map(lambda ids: lax.dynamic_slice_in_dim(ids, start, local, axis=1), all_keys)
        pairs = find_block_pairs(queries, keys, first_visible, (size, size))
        return SegmentMask(queries=queries, keys=keys, window=mask.window, block_pairs=pairs)

    return RingMask(tuple(map(step_mask, range(ranks))), axes)
