"""The plain form: the whole collective, then or after the whole matmul. What the other forms are compared with."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pallas_kernels.collective_matmul.tiling import CollectiveTiling


def matmul_float32(x: jax.Array, w: jax.Array) -> jax.Array:
    """`[..., d] @ [d, f]`, accumulated in float32 and left so."""
    return jnp.matmul(x, w, preferred_element_type=jnp.float32)


def input_gradient(y: jax.Array, w: jax.Array) -> jax.Array:
    """`[..., f]` times the transpose of `[d, f]`, in float32: the gradient of x in x @ w."""
    return jnp.einsum("...f,df->...d", y, w, preferred_element_type=jnp.float32)


def weight_gradient(x: jax.Array, y: jax.Array) -> jax.Array:
    """The gradient `[d, f]` of w in x @ w, given x `[..., d]` and the result's gradient `[..., f]`, in float32."""
    leading = tuple(range(x.ndim - 1))
    return lax.dot_general(x, y, ((leading, leading), ((), ())), preferred_element_type=jnp.float32)


def sum_arrays(arrays: Sequence[jax.Array]) -> jax.Array:
    """Their sum."""
    return sum(arrays[1:], start=arrays[0])


def all_gather_positions(x: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    """All ranks' positions `[..., s / n, d]` as `[..., s, d]`."""
    return lax.all_gather(x, axes, axis=x.ndim - 2, tiled=True)


def reduce_scatter_positions(y: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    """The ranks' sum of `[..., s, f]`, of which each keeps its positions `[..., s / n, f]`."""
    return lax.psum_scatter(y, axes, scatter_dimension=y.ndim - 2, tiled=True)


def gather_matmul(
    x: jax.Array, weights: Sequence[jax.Array], axes: tuple[str, ...], tiling: CollectiveTiling, dtype: np.dtype
) -> tuple[jax.Array, ...]:
    """`gather(x) @ w` for every weight."""
    whole = all_gather_positions(x, axes)
    return tuple(matmul_float32(whole, w).astype(dtype) for w in weights)


def gather_matmul_backward(
    x: jax.Array,
    weights: Sequence[jax.Array],
    gradients: Sequence[jax.Array],
    axes: tuple[str, ...],
    tiling: CollectiveTiling,
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """Gradients of x and of the weights; x is gathered again, because keeping it would cost n times its memory."""
    whole = all_gather_positions(x, axes)
    back = sum_arrays([input_gradient(y, w) for y, w in zip(gradients, weights, strict=True)])
    return reduce_scatter_positions(back.astype(x.dtype), axes), tuple(weight_gradient(whole, y) for y in gradients)


def matmul_scatter(x: jax.Array, w: jax.Array, axes: tuple[str, ...], tiling: CollectiveTiling) -> jax.Array:
    """`scatter(x @ w)`."""
    return reduce_scatter_positions(matmul_float32(x, w).astype(x.dtype), axes)


def matmul_scatter_backward(
    x: jax.Array, w: jax.Array, gradient: jax.Array, axes: tuple[str, ...], tiling: CollectiveTiling
) -> tuple[jax.Array, jax.Array]:
    """Gradients of x and w."""
    whole = all_gather_positions(gradient, axes)
    return input_gradient(whole, w).astype(x.dtype), weight_gradient(x, whole)


def matmul_sum(x: jax.Array, w: jax.Array, axes: tuple[str, ...], chunks: int) -> jax.Array:
    """The ranks' sum of x @ w, on all of them."""
    return lax.psum(matmul_float32(x, w).astype(x.dtype), axes)
