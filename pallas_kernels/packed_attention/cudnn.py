"""cuDNN's flash attention through jax's public function: scores stay on the chip, and the mask is passed as a bias.

It computes the whole square of scores (half of it where causal), and the bias is quadratic in the row, though not in
the heads. cuDNN has a layout for packed segments, which jax keeps private (jax pull request 29731 would publish it);
that layout has no branches either.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.packed_attention.dense import zero_masked_queries
from pallas_kernels.packed_attention.scores import ScoreOptions
from pallas_kernels.packed_attention.segment_mask import SegmentMask, dense_mask


def attend(
    query: Float[Array, "r s h e"],
    key: Float[Array, "r t k e"],
    value: Float[Array, "r t k u"],
    mask: SegmentMask,
    sinks: Float[Array, " h"] | None,
    options: ScoreOptions,
) -> Float[Array, "r s h u"]:
    """See `packed_attention`.

    Raises:
        NotImplementedError: There is no cuDNN, or it does not take such arrays; the message says which.
    """
    if options.softcap or sinks is not None:
        sinks_in_words = "none" if sinks is None else "some"
        raise NotImplementedError(f"cudnn: takes no soft cap ({options.softcap:g}) and no sinks ({sinks_in_words})")
    visible = dense_mask(mask)  # [r, s, t]
    causal = mask.is_causal and mask.queries.blocks is None
    output = _attend(query, key, value, options.scale, mask=visible[:, None], is_causal=causal)
    return zero_masked_queries(output, visible)


def attend_to_all(
    query: Float[Array, "b s h e"], key: Float[Array, "b t k e"], value: Float[Array, "b t k e"], scale: float
) -> Float[Array, "b s h e"]:
    """See `full_attention`. Raises NotImplementedError as `attend` does."""
    return _attend(query, key, value, scale)


def _attend(query: jax.Array, key: jax.Array, value: jax.Array, scale: float, **mask: Any) -> jax.Array:
    s, t, e = query.shape[1], key.shape[1], query.shape[3]
    if query.dtype not in (jnp.bfloat16, jnp.float16):
        raise NotImplementedError(f"cudnn: takes bfloat16 and float16, not {query.dtype}")
    if e % 8:
        raise NotImplementedError(f"cudnn: takes heads of a multiple of 8 channels, not {e}")
    if s % 2 or t % 2:
        raise NotImplementedError(f"cudnn: takes even numbers of queries and keys, not {s} and {t}")
    if value.shape[3] != e:
        raise NotImplementedError(f"cudnn: takes values as wide as keys, not {value.shape[3]} beside {e}")
    try:
        return jax.nn.dot_product_attention(query, key, value, scale=scale, implementation="cudnn", **mask)
    # What jax raises where there is no cuDNN, or heads have more than 128 channels, or 256 on Hopper and newer.
    except RuntimeError as error:
        raise NotImplementedError(f"cudnn: {error}") from error
