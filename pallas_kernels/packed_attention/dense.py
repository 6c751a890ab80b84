"""Attention with the scores of all pairs and a mask: the definition; quadratic in the row, quick for short ones."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from pallas_kernels.packed_attention.segment_mask import SegmentMask, dense_mask


def attend(
    query: Float[Array, "r s h e"], key: Float[Array, "r t k e"], value: Float[Array, "r t k e"], mask: SegmentMask
) -> Float[Array, "r s h e"]:
    """See `packed_attention`."""
    visible = dense_mask(mask)  # [r, s, t]
    output = jax.nn.dot_product_attention(query, key, value, mask=visible[:, None])  # [r, s, h, e]
    return zero_masked_queries(output, visible)


def zero_masked_queries(output: Float[Array, "r s h e"], visible: Bool[Array, "r s t"]) -> Float[Array, "r s h e"]:
    """Zeros for queries that attend to nothing, where the softmax is over no key."""
    return jnp.where(jnp.any(visible, axis=-1)[:, :, None, None], output, jnp.zeros((), output.dtype))
