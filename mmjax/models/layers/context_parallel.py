"""Context parallelism: the positions of a row divided over ranks in all layers of a stack, for long rows.

What enters and leaves a module, and the arrays of a batch, have whole rows on every rank. A rank computes the layers
between for its own positions (`pallas_kernels.packed_attention.zigzag`); only attention needs those of other ranks.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from mmjax.models.layers.tensor_parallel import all_gather_sequence, sequence_positions
from pallas_kernels.packed_attention import HeadExchangeMask, SegmentMask, make_ring_mask
from pallas_kernels.packed_attention.api import Mask
from pallas_kernels.packed_attention.zigzag import gather_zigzag, place_on_ranks, split_zigzag
from sharding.axes import Axes


def context_positions(x: jax.Array, axes: Axes) -> jax.Array:
    """This context-parallel rank's positions of `[r, s, ...]`; all positions where `axes.context` is empty."""
    return split_zigzag(x, axes.context) if axes.context else x


def gather_context(x: jax.Array, axes: Axes) -> jax.Array:
    """All positions of `[r, q, ...]`, given each context-parallel rank's; the inverse of `context_positions`."""
    return gather_zigzag(x, axes.context) if axes.context else x


def local_positions(x: jax.Array, axes: Axes) -> jax.Array:
    """This rank's positions of `[r, s, ...]`, which context-parallel ranks divide and tensor ranks divide further."""
    if axes.context:
        return split_zigzag(x, axes.context, axes.sequence)
    return sequence_positions(x, axes)


def all_gather_positions(x: jax.Array, axes: Axes) -> jax.Array:
    """All positions of `[r, q, ...]`, given each rank's; the inverse of `local_positions`."""
    if axes.context:
        return gather_zigzag(x, axes.context, axes.sequence)
    return all_gather_sequence(x, axes)


def mask_of_rank(mask: SegmentMask, axes: Axes) -> Mask:
    """The mask with which this rank's queries attend, given that of whole rows."""
    if not axes.context:
        return mask
    if axes.context_transfer == "all_to_all":
        return HeadExchangeMask(mask, axes.context)
    return make_ring_mask(mask, axes.context)


def take_positions(x: Float[Array, "r q d"], places: Int[Array, "r n"], length: int, axes: Axes) -> Array:
    """Activations `[r, n, d]` at some places of each row, the same on all context-parallel ranks.

    Args:
        x: This context-parallel rank's positions.
        places: Places in the row.
        length: Positions of a row.
        axes: Mesh axes.
    """
    if not axes.context:
        return jnp.take_along_axis(x, places[:, :, None], axis=1)
    is_here, index = place_on_ranks(places, length, axes.context)
    taken = jnp.take_along_axis(x, index[:, :, None], axis=1)
    return lax.psum(jnp.where(is_here[:, :, None], taken, jnp.zeros((), x.dtype)), axes.context)
