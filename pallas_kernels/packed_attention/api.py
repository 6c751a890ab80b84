"""Packed attention as callers use it; it chooses the implementation.

The attention layers of models and the KV cache of generation call `packed_attention`.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.fallbacks import warn_once
from pallas_kernels.packed_attention import blocked, cudnn, dense
from pallas_kernels.packed_attention.head_exchange import (
    HeadExchangeMask,
    heads_of_rank,
    to_heads,
    to_positions,
)
from pallas_kernels.packed_attention.ring_mask import RingMask
from pallas_kernels.packed_attention.scores import ScoreOptions
from pallas_kernels.packed_attention.segment_mask import MAX_DENSE_PAIRS, SegmentMask, make_segment_mask

IMPLEMENTATIONS: dict[str, Callable[..., jax.Array]] = {
    "dense": dense.attend,
    "blocked": blocked.attend,
    "cudnn": cudnn.attend,
}
DTYPES = (jnp.float32, jnp.bfloat16, jnp.float16)

MAX_SCORE_BYTES = 2**30
"""Bytes of float32 scores up to which `full_attention` is dense where it is not cuDNN's."""

Mask = SegmentMask | RingMask | HeadExchangeMask

_for_gpu: contextvars.ContextVar[bool] = contextvars.ContextVar("attention_of_gpus", default=False)
_default: contextvars.ContextVar[str | None] = contextvars.ContextVar("packed_attention", default=None)


@contextlib.contextmanager
def use_attention_implementation(implementation: str) -> Iterator[None]:
    """Makes an implementation the default of all attention traced inside: to count FLOPs, say, or to compare."""
    token = _default.set(_check_implementation(implementation))
    try:
        yield
    finally:
        _default.reset(token)


@contextlib.contextmanager
def use_attention_of_gpus() -> Iterator[None]:
    """Makes all attention traced inside what it is on a GPU: to compile for one that is not here."""
    token = _for_gpu.set(True)
    try:
        yield
    finally:
        _for_gpu.reset(token)


def _is_for_gpu() -> bool:
    return _for_gpu.get() or jax.default_backend() == "gpu"


def packed_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: Mask,
    *,
    scale: float | None = None,
    softcap: float = 0.0,
    sinks: jax.Array | None = None,
    implementation: str | None = None,
) -> jax.Array:
    """softmax(scale * query key^T) value within the segments.

    The softmax and all sums are in float32, whatever the inputs are. A query that may attend to nothing, such as
    padding, gets zeros, and no gradient passes through it.

    Args:
        query: `[r, s, h, e]`.
        key, value: `[r, t, k, e]` and `[r, t, k, u]`; k divides h, and h / k query heads share a key head.
        mask: Which keys each query attends to: what `make_segment_mask` returns. Where ranks divide the positions of a
            row, and s and t are this rank's, what `make_ring_mask` returns, or a `HeadExchangeMask`.
        scale: Factor of the products of queries and keys; by default 1 / sqrt(e).
        softcap: Scores are softcap * tanh(score / softcap) (Gemma 2, arXiv 2408.00118); 0 for no limit.
        sinks: `[h]`, the score of each head for attending to nothing, which joins the softmax's denominator (gpt-oss,
            arXiv 2508.10925); None for none.
        implementation: `dense` computes the scores of every pair; `blocked` the scores of blocks that overlap, in
            memory linear in the sequence; `cudnn` is cuDNN's, on NVIDIA GPUs. By default `cudnn` on GPUs, where it
            takes the arrays (if not, a warning says why, once); otherwise `dense` for short rows and `blocked` for rows
            of more pairs than `MAX_DENSE_PAIRS`. A ring is always `blocked`.

    Returns:
        `[r, s, h, u]`.

    Raises:
        ValueError: The shapes or types do not fit, or there is no such implementation.
        NotImplementedError: The implementation named does not take such arrays; the message says why.
    """
    if isinstance(mask, HeadExchangeMask):
        output = packed_attention(
            to_heads(query, mask.axes),
            to_heads(key, mask.axes),
            to_heads(value, mask.axes),
            mask.whole,
            scale=scale,
            softcap=softcap,
            sinks=None if sinks is None else heads_of_rank(sinks, mask.axes),
            implementation=implementation,
        )
        return to_positions(output, mask.axes)
    _check_shapes(query, key, value, mask)
    if sinks is not None and sinks.shape != (query.shape[2],):
        raise ValueError(f"sinks are {list(sinks.shape)} for {query.shape[2]} query heads; give one for each")
    options = ScoreOptions(scale or query.shape[3] ** -0.5, softcap)
    if isinstance(mask, RingMask):
        return blocked.attend(query, key, value, mask, sinks, options)
    operands = (query, key, value, mask, sinks, options)
    chosen = implementation or _default.get()
    if chosen:
        return IMPLEMENTATIONS[_check_implementation(chosen)](*operands)
    short = query.shape[1] * key.shape[1] <= MAX_DENSE_PAIRS
    if _is_for_gpu():
        try:
            return cudnn.attend(*operands)
        except NotImplementedError as error:
            warn_once(f"packed attention is {'dense' if short else 'blocked'} on this GPU, because {error}")
    return (dense if short else blocked).attend(*operands)


def full_attention(query: jax.Array, key: jax.Array, value: jax.Array, *, scale: float | None = None) -> jax.Array:
    """softmax(scale * query key^T) value, where every query attends to every key of its item.

    On GPUs it is cuDNN's, which keeps no scores in memory, where cuDNN takes the arrays; if not, a warning says why,
    once. Otherwise it is dense; and blocked where the scores would take more than `MAX_SCORE_BYTES`, or values are not
    as wide as keys.

    Args:
        query: `[b, s, h, e]`.
        key, value: `[b, t, k, e]` and `[b, t, k, u]`; k divides h.
        scale: Factor of the products of queries and keys; by default 1 / sqrt(e).

    Returns:
        `[b, s, h, u]`.
    """
    factor = query.shape[3] ** -0.5 if scale is None else scale
    default = _default.get()
    if default is None and _is_for_gpu():
        try:
            return cudnn.attend_to_all(query, key, value, factor)
        except NotImplementedError as error:
            warn_once(f"full attention is not cuDNN's on this GPU, because {error}")
    if default == "cudnn":
        return cudnn.attend_to_all(query, key, value, factor)
    (items, queries, heads, _), keys = query.shape, key.shape[1]
    fits = default != "blocked" and value.shape[3] == query.shape[3]
    if fits and (default == "dense" or 4 * items * heads * queries * keys <= MAX_SCORE_BYTES):
        return jax.nn.dot_product_attention(query, key, value, scale=factor)
    of_queries, of_keys = (np.ones((items, length), np.int32) for length in (queries, keys))
    mask = make_segment_mask(of_queries, keys=of_keys)
    return blocked.attend(query, key, value, mask, None, ScoreOptions(factor, 0.0))


def _check_implementation(implementation: str) -> str:
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(f"implementation is {implementation!r}; choose one of {', '.join(IMPLEMENTATIONS)}")
    return implementation


def _check_shapes(query: jax.Array, key: jax.Array, value: jax.Array, mask: SegmentMask | RingMask) -> None:
    shapes = f"query {list(query.shape)}, key {list(key.shape)}, value {list(value.shape)}"
    if {query.ndim, key.ndim, value.ndim} != {4} or 0 in (*query.shape, *key.shape):
        raise ValueError(f"{shapes}: give [rows, positions, heads, width], none of them 0")
    if key.shape[:3] != value.shape[:3] or (query.shape[0], query.shape[3]) != (key.shape[0], key.shape[3]):
        raise ValueError(
            f"{shapes}: rows must be the same, queries as wide as keys, and as many keys and key heads as values"
        )
    if query.shape[2] % key.shape[2]:
        raise ValueError(f"{shapes}: {key.shape[2]} key heads do not divide {query.shape[2]} query heads")
    if not query.dtype == key.dtype == value.dtype or query.dtype not in DTYPES:
        raise ValueError(
            f"query {query.dtype}, key {key.dtype}, value {value.dtype}: give one type of float32, bfloat16, float16"
        )
    if mask.queries.segments.shape != query.shape[:2] or mask.keys.segments.shape != key.shape[:2]:
        segments = f"{list(mask.queries.segments.shape)} queries and {list(mask.keys.segments.shape)} keys"
        raise ValueError(f"{shapes}: the mask is of {segments}; give one segment for each position")
