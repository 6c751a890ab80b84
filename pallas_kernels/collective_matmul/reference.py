"""The plain implementation: the whole collective before or after the whole matmul. Others are compared with it."""

from collections.abc import Sequence

import jax
from jax import lax

from pallas_kernels.collective_matmul.tiling import CollectiveTiling
from pallas_kernels.fp8 import MatmulFormat, gradient_operand, operand
from pallas_kernels.matmul import input_gradient, product, weight_gradient


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
    matmul_format: MatmulFormat,
) -> tuple[jax.Array, ...]:
    """gather(x) @ w for every weight: [..., s / n, d], [d, f_i] -> [..., s, f_i]."""
    gathered = all_gather_positions(x, axes)  # [..., s, d]
    gathered = operand(gathered, matmul_format)
    return tuple(product(gathered, operand(w, matmul_format)).astype(x.dtype) for w in weights)


def gather_matmul_backward(
    x: jax.Array,
    weights: Sequence[jax.Array],
    cotangents: Sequence[jax.Array],
    axes: tuple[str, ...],
    tiling: CollectiveTiling,
    matmul_format: MatmulFormat,
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """The dgrad `[..., s / n, d]` and wgrads `[d, f_i]`; x is gathered again, not saved at n times its memory."""
    gathered = operand(all_gather_positions(x, axes), matmul_format)  # [..., s, d]
    gradients = [gradient_operand(y, matmul_format) for y in cotangents]
    pairs = zip(gradients, weights, strict=True)
    dgrad = sum_arrays([input_gradient(y, operand(w, matmul_format)) for y, w in pairs])  # [..., s, d]
    return reduce_scatter_positions(dgrad.astype(x.dtype), axes), tuple(weight_gradient(gathered, y) for y in gradients)


def matmul_scatter(
    x: jax.Array, w: jax.Array, axes: tuple[str, ...], tiling: CollectiveTiling, matmul_format: MatmulFormat
) -> jax.Array:
    """reduce_scatter(x @ w): [..., s, d], [d, f] -> [..., s / n, f]."""
    y = product(operand(x, matmul_format), operand(w, matmul_format))
    return reduce_scatter_positions(y.astype(x.dtype), axes)


def matmul_scatter_backward(
    x: jax.Array,
    w: jax.Array,
    cotangent: jax.Array,
    axes: tuple[str, ...],
    tiling: CollectiveTiling,
    matmul_format: MatmulFormat,
) -> tuple[jax.Array, jax.Array]:
    """The dgrad `[..., s, d]` and wgrad `[d, f]`, given the cotangent `[..., s / n, f]`."""
    gathered = gradient_operand(all_gather_positions(cotangent, axes), matmul_format)  # [..., s, f]
    dgrad = input_gradient(gathered, operand(w, matmul_format)).astype(x.dtype)
    return dgrad, weight_gradient(operand(x, matmul_format), gathered)


def matmul_sum(
    x: jax.Array, w: jax.Array, axes: tuple[str, ...], chunks: int, matmul_format: MatmulFormat
) -> jax.Array:
    """all_reduce(x @ w): [..., s, d], [d, f] -> [..., s, f]."""
    y = product(operand(x, matmul_format), operand(w, matmul_format))
    return lax.psum(y.astype(x.dtype), axes)
