"""Attention that callers use; it chooses the form."""

import contextlib
import contextvars
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp

from pallas_kernels.packed_attention import blocked, cudnn
from pallas_kernels.packed_attention import dense as reference
from pallas_kernels.packed_attention.segment_mask import MAX_DENSE_PAIRS, SegmentMask

IMPLEMENTATIONS: dict[str, Callable[..., jax.Array]] = {
    "dense": reference.attend,
    "blocked": blocked.attend,
    "cudnn": cudnn.attend,
}
DTYPES = (jnp.float32, jnp.bfloat16, jnp.float16)

_chosen: contextvars.ContextVar[str | None] = contextvars.ContextVar("packed_attention", default=None)


@contextlib.contextmanager
def use_attention_implementation(implementation: str) -> Iterator[None]:
    """What is traced inside uses this implementation unless told another: to count FLOPs, say, or to compare."""
    token = _chosen.set(_known(implementation))
    try:
        yield
    finally:
        _chosen.reset(token)


def packed_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    packing: SegmentMask,
    *,
    implementation: str | None = None,
) -> jax.Array:
    """softmax(query key^T e**-0.5) value within the segments; k divides h, and h / k query heads share a key head.

    The softmax and all sums are in float32, whatever the inputs are. A query that sees nothing gets zeros, as padding
    does, and nothing passes through it backward.

    Args:
        packing: Who sees whom: what `pack` makes.
        implementation: `dense` computes every pair; `blocked` those of blocks that touch, in memory linear in the
            sequence; `cudnn` is cuDNN's, on NVIDIA GPUs. By default on GPUs `cudnn`, where it takes the arrays;
            else, and on all other devices, `dense` for short rows and `blocked` beyond `packing.SHORT`.

    Raises:
        ValueError: The shapes or types do not fit, or there is no such implementation.
        NotImplementedError: The implementation that was asked for does not take such arrays; it says why.
    """
    _check(query, key, value, packing)
    asked = implementation or _chosen.get()
    if asked:
        return IMPLEMENTATIONS[_known(asked)](query, key, value, packing)
    if jax.default_backend() == "gpu":
        with contextlib.suppress(NotImplementedError):
            return cudnn.attend(query, key, value, packing)
    short = query.shape[1] * key.shape[1] <= MAX_DENSE_PAIRS
    return (reference if short else blocked).attend(query, key, value, packing)


def _known(implementation: str) -> str:
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(f"implementation is {implementation!r}; choose one of {', '.join(IMPLEMENTATIONS)}")
    return implementation


def _check(query: jax.Array, key: jax.Array, value: jax.Array, packing: SegmentMask) -> None:
    shapes = f"query {list(query.shape)}, key {list(key.shape)}, value {list(value.shape)}"
    if {query.ndim, key.ndim, value.ndim} != {4} or 0 in (*query.shape, *key.shape):
        raise ValueError(f"{shapes}: give [rows, positions, heads, width], none of them 0")
    if key.shape != value.shape or (query.shape[0], query.shape[3]) != (key.shape[0], key.shape[3]):
        raise ValueError(f"{shapes}: rows and widths must be the same, and key and value of one shape")
    if query.shape[2] % key.shape[2]:
        raise ValueError(f"{shapes}: {key.shape[2]} key heads do not divide {query.shape[2]} query heads")
    if not query.dtype == key.dtype == value.dtype or query.dtype not in DTYPES:
        raise ValueError(
            f"query {query.dtype}, key {key.dtype}, value {value.dtype}: give one type of float32, bfloat16, float16"
        )
    if packing.query_segments.shape != query.shape[:2] or packing.key_segments.shape != key.shape[:2]:
        of = f"{list(packing.query_segments.shape)} queries and {list(packing.key_segments.shape)} keys"
        raise ValueError(f"{shapes}: the packing is of {of}; give one segment for each position")
