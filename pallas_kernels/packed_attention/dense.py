"""Attention with the scores of all pairs and a mask: the definition; quadratic in the row, quick for short ones."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from pallas_kernels.packed_attention.scores import ScoreOptions
from pallas_kernels.packed_attention.segment_mask import SegmentMask, dense_mask

MASKED_SCORE = -1e30


def attend(
    query: Float[Array, "r s h e"],
    key: Float[Array, "r t k e"],
    value: Float[Array, "r t k u"],
    mask: SegmentMask,
    sinks: Float[Array, " h"] | None,
    options: ScoreOptions,
) -> Float[Array, "r s h u"]:
    """See `packed_attention`."""
    r, s, h, e = query.shape
    groups = (key.shape[2], h // key.shape[2])  # k, g
    visible = dense_mask(mask)  # [r, s, t]
    products = jnp.einsum("rskge,rtke->rkgst", query.reshape(r, s, *groups, e), key, preferred_element_type=jnp.float32)
    scores = jnp.where(visible[:, None, None], options.scores(products), MASKED_SCORE)
    maximum = jnp.max(scores, axis=-1, keepdims=True)
    sink_scores = None if sinks is None else sinks.astype(jnp.float32).reshape(1, *groups, 1, 1)
    if sink_scores is not None:
        maximum = jnp.maximum(maximum, sink_scores)
    maximum = jax.lax.stop_gradient(maximum)
    weights = jnp.exp(scores - maximum)  # [r, k, g, s, t]
    denominator = jnp.sum(weights, axis=-1, keepdims=True)
    if sink_scores is not None:
        denominator = denominator + jnp.exp(sink_scores - maximum)
    weights = (weights / denominator).astype(value.dtype)
    output = jnp.einsum("rkgst,rtku->rskgu", weights, value, preferred_element_type=jnp.float32)
    return zero_masked_queries(output.reshape(r, s, h, -1).astype(query.dtype), visible)


def zero_masked_queries(output: Float[Array, "r s h u"], visible: Bool[Array, "r s t"]) -> Float[Array, "r s h u"]:
    """Zeros for queries that attend to nothing, where the softmax is over no key."""
    return jnp.where(jnp.any(visible, axis=-1)[:, :, None, None], output, jnp.zeros((), output.dtype))
