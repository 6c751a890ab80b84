"""Context parallelism: the positions of a row divided over ranks in all layers of a stack, for long rows.

Inputs and outputs of a module, and the arrays of a batch, have whole rows on every rank. A rank computes the layers
between for its own positions (`pallas_kernels.packed_attention.zigzag`); only attention needs the other ranks' keys
and values.
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
    """Takes this context-parallel rank's positions of `[r, s, ...]`; all positions where `axes.context` is empty."""
    return split_zigzag(x, axes.context) if axes.context else x


def gather_context(x: jax.Array, axes: Axes) -> jax.Array:
    """All-gathers the positions of `[r, q, ...]` over the context-parallel ranks; inverts `context_positions`."""
    return gather_zigzag(x, axes.context) if axes.context else x


def local_positions(x: jax.Array, axes: Axes) -> jax.Array:
    """Takes this rank's positions of `[r, s, ...]`; context-parallel ranks divide them, and tensor ranks further."""
    if axes.context:
        return split_zigzag(x, axes.context, axes.sequence)
    return sequence_positions(x, axes)


def all_gather_positions(x: jax.Array, axes: Axes) -> jax.Array:
    """All-gathers the positions of `[r, q, ...]` over all ranks; the inverse of `local_positions`."""
    if axes.context:
        return gather_zigzag(x, axes.context, axes.sequence)
    return all_gather_sequence(x, axes)


def mask_of_rank(mask: SegmentMask, axes: Axes) -> Mask:
    """Restricts the mask of whole rows to this rank's queries."""
    if not axes.context:
        return mask
    if axes.context_transfer == "all_to_all":
        return HeadExchangeMask(mask, axes.context)
    return make_ring_mask(mask, axes.context)


def take_positions(x: Float[Array, "r q d"], places: Int[Array, "r n"], length: int, axes: Axes) -> Array:
    """Takes the activations `[r, n, d]` at some places of each row; they are the same on all context-parallel ranks.

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
