"""The plain implementation: the whole collective before or after the whole matmul. Others are compared with it."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.collective_matmul.tiling import CollectiveTiling
from pallas_kernels.matmul import input_gradient, weight_gradient


def matmul_float32(x: jax.Array, w: jax.Array) -> jax.Array:
    """`[..., d] @ [d, f]`, accumulated and returned in float32."""
    return jnp.matmul(x, w, preferred_element_type=jnp.float32)


def sum_arrays(arrays: Sequence[jax.Array]) -> jax.Array:
    """Returns the sum of some arrays, added in order."""
    return sum(arrays[1:], start=arrays[0])


def all_gather_positions(x: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    """All-gathers the positions: [..., s / n, d] -> [..., s, d]."""
    return lax.all_gather(x, axes, axis=x.ndim - 2, tiled=True)


def reduce_scatter_positions(y: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    """The sum over ranks of `[..., s, f]`, of which each keeps its positions `[..., s / n, f]`."""
    return lax.psum_scatter(y, axes, scatter_dimension=y.ndim - 2, tiled=True)


def gather_matmul(
    x: jax.Array,
    weights: Sequence[jax.Array],
    axes: tuple[str, ...],
    tiling: CollectiveTiling,
) -> tuple[jax.Array, ...]:
    """gather(x) @ w for every weight: [..., s / n, d], [d, f_i] -> [..., s, f_i]."""
    gathered = all_gather_positions(x, axes)  # [..., s, d]
    return tuple(matmul_float32(gathered, w).astype(x.dtype) for w in weights)


def gather_matmul_backward(
    x: jax.Array,
    weights: Sequence[jax.Array],
    cotangents: Sequence[jax.Array],
    axes: tuple[str, ...],
    tiling: CollectiveTiling,
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """The dgrad `[..., s / n, d]` and wgrads `[d, f_i]`; x is gathered again, not saved at n times its memory."""
    gathered = all_gather_positions(x, axes)  # [..., s, d]
    dgrad = sum_arrays([input_gradient(y, w) for y, w in zip(cotangents, weights, strict=True)])  # [..., s, d]
    return reduce_scatter_positions(dgrad.astype(x.dtype), axes), tuple(
        weight_gradient(gathered, y) for y in cotangents
    )


def matmul_scatter(x: jax.Array, w: jax.Array, axes: tuple[str, ...], tiling: CollectiveTiling) -> jax.Array:
    """reduce_scatter(x @ w): [..., s, d], [d, f] -> [..., s / n, f]."""
    return reduce_scatter_positions(matmul_float32(x, w).astype(x.dtype), axes)


def matmul_scatter_backward(
    x: jax.Array, w: jax.Array, cotangent: jax.Array, axes: tuple[str, ...], tiling: CollectiveTiling
) -> tuple[jax.Array, jax.Array]:
    """The dgrad `[..., s, d]` and wgrad `[d, f]`, given the cotangent `[..., s / n, f]`."""
    gathered = all_gather_positions(cotangent, axes)  # [..., s, f]
    return input_gradient(gathered, w).astype(x.dtype), weight_gradient(x, gathered)


def matmul_sum(x: jax.Array, w: jax.Array, axes: tuple[str, ...], chunks: int) -> jax.Array:
    """all_reduce(x @ w): [..., s, d], [d, f] -> [..., s, f]."""
    return lax.psum(matmul_float32(x, w).astype(x.dtype), axes)
