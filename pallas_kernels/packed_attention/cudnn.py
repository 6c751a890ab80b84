"""cuDNN's flash attention, through jax's public function: scores stay on the chip, and what is hidden comes as a bias.

Its cost is that of the square (half of it where causal), and the bias is quadratic in the row, though not in the heads.
cuDNN has a layout for packed segments, which jax keeps private (jax pull request 29731 would publish it); it knows no
branches either.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.packed_attention.dense import zero_masked_queries
from pallas_kernels.packed_attention.segment_mask import SegmentMask, dense_mask

WIDEST = 128  # twice that on Hopper, where no model here asks for it


def attend(
    query: Float[Array, "r s h e"], key: Float[Array, "r t k e"], value: Float[Array, "r t k e"], packing: SegmentMask
) -> Float[Array, "r s h e"]:
    """See `packed_attention`.

    Raises:
        NotImplementedError: cuDNN is not here, or does not take such arrays; it says which.
    """
    s, t, e = query.shape[1], key.shape[1], query.shape[3]
    if query.dtype not in (jnp.bfloat16, jnp.float16):
        raise NotImplementedError(f"cudnn: takes bfloat16 and float16, not {query.dtype}")
    if e % 8 or e > WIDEST:
        raise NotImplementedError(f"cudnn: takes heads of a multiple of 8 channels up to {WIDEST}, not {e}")
    if s % 2 or t % 2:
        raise NotImplementedError(f"cudnn: takes even numbers of queries and keys, not {s} and {t}")
    mask = dense_mask(packing)
    try:
        output = jax.nn.dot_product_attention(
            query, key, value, mask=mask[:, None], is_causal=packing.causal, implementation="cudnn"
        )
    except RuntimeError as error:  # what jax raises where there is no cuDNN
        raise NotImplementedError(f"cudnn: {error}") from error
    return zero_masked_queries(output, mask)
