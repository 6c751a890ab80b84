"""The definition: a table of who sees whom, and scores of every pair. Quadratic in the row, quick for short ones."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.packed_attention.segment_mask import SegmentMask, dense_mask


def attend(
    query: Float[Array, "r s h e"], key: Float[Array, "r t k e"], value: Float[Array, "r t k e"], packing: SegmentMask
) -> Float[Array, "r s h e"]:
    """See `packed_attention`."""
    mask = dense_mask(packing)
    return zero_masked_queries(jax.nn.dot_product_attention(query, key, value, mask=mask[:, None]), mask)


def zero_masked_queries(output: Float[Array, "r s h e"], mask: Array) -> Float[Array, "r s h e"]:
    """Zeros for whom nothing is seen: there the softmax is over nothing."""
    return jnp.where(jnp.any(mask, axis=-1)[:, :, None, None], output, jnp.zeros((), output.dtype))
