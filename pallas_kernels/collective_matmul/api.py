"""The matmuls of tensor parallelism with their collectives, differentiable; they run inside `jax.shard_map`.

With a weight split by columns over n ranks, an all-gather matmul computes y = gather(x) @ w; with a weight split by
rows, a matmul reduce-scatter computes y = reduce_scatter(x @ w). The dgrad of the one is the other. The forward is one
call of a backend and the backward, dgrad and wgrad together, another, so that each can overlap its collectives with its
matmuls. The residuals are the operands: a rank's own positions and weights.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from pallas_kernels.collective_matmul import mosaic, reference, ring
from pallas_kernels.collective_matmul.tiling import (
    CollectiveTiling,
    MatmulShape,
    all_reduce_chunks,
    choose_tiling,
    device_kind,
    tiling_fits,
)
from pallas_kernels.fp8 import MatmulFormat, gradient_operand, operand
from pallas_kernels.matmul import input_gradient, weight_gradient
from pallas_kernels.varying import match_cotangent, rank_count

MeshAxes = tuple[str, ...]
DTYPES = ("float32", "bfloat16", "float16")


class Backend(NamedTuple):
    """An implementation: the functions of `reference`, under the same names."""

    gather_matmul: Callable
    gather_matmul_backward: Callable
    matmul_scatter: Callable
    matmul_scatter_backward: Callable
    matmul_sum: Callable


def _backend(module: object) -> Backend:
    return Backend(*(getattr(module, name) for name in Backend._fields))


BACKENDS: dict[str, Backend] = {
    "reference": _backend(reference),
    "ring": _backend(ring),
    "mosaic": _backend(mosaic),
}


def all_gather_matmul(
    x: jax.Array,
    weights: tuple[jax.Array, ...],
    axes: MeshAxes,
    *,
    backend: str = "ring",
    tiling: CollectiveTiling | None = None,
    matmul_format: MatmulFormat = "native",
) -> tuple[jax.Array, ...]:
    """gather(x) @ w for every weight; x is gathered once.

    Args:
        x: This rank's positions `[..., s / n, d]`.
        weights: This rank's columns of each weight, `[d, f_i]`.
        axes: Mesh axes of the n ranks.
        backend: `reference`, `ring`, or `mosaic`, which uses the ring where its kernels cannot run and logs why.
        tiling: How a rank's positions are divided; by default the fastest one measured on such a device, else whole
            shards on one ring.
        matmul_format: Format of the operands of all products (`pallas_kernels.fp8`).

    Returns:
        `[..., s, f_i]` for every weight.

    Raises:
        ValueError: An axis, the backend, shapes or precisions do not fit; the message has the shapes.
    """
    _check_operands(x, weights, axes, backend)
    tiling = _check_tiling(tiling, _matmul_shape(x, weights, rank_count(axes), x.shape[-2]))
    return _gather_matmul(x, weights, axes, backend, tiling, matmul_format)


def matmul_reduce_scatter(
    x: jax.Array,
    w: jax.Array,
    axes: MeshAxes,
    *,
    backend: str = "ring",
    tiling: CollectiveTiling | None = None,
    matmul_format: MatmulFormat = "native",
) -> jax.Array:
    """This rank's positions of the sum over ranks of x @ w.

    Args:
        x: All positions, and the channels that multiply this rank's rows of the weight, `[..., s, d]`.
        w: These rows, `[d, f]`.
        axes, backend, tiling, matmul_format: As in `all_gather_matmul`.

    Returns:
        `[..., s / n, f]`.

    Raises:
        ValueError: As in `all_gather_matmul`, or the n ranks do not divide the positions.
    """
    _check_operands(x, (w,), axes, backend)
    ranks, positions = rank_count(axes), x.shape[-2]
    if positions % ranks:
        raise ValueError(
            f"matmul_reduce_scatter got x {list(x.shape)}: the {ranks} ranks of {_describe_axes(axes)} do not divide "
            f"{positions} positions; use a multiple of {ranks}"
        )
    tiling = _check_tiling(tiling, _matmul_shape(x, (w,), ranks, positions // ranks))
    return _matmul_scatter(x, w, axes, backend, tiling, matmul_format)


def matmul_all_reduce(
    x: jax.Array, w: jax.Array, axes: MeshAxes, *, backend: str = "ring", matmul_format: MatmulFormat = "native"
) -> jax.Array:
    """The sum over ranks of x @ w on all of them, for layers whose positions are not divided.

    Args:
        x: All positions, and the channels that multiply this rank's rows of the weight, `[..., s, d]`.
        w: These rows, `[d, f]`.
        axes, backend, matmul_format: As in `all_gather_matmul`; `ring` sums chunk by chunk.

    Returns:
        `[..., s, f]`, the same on all ranks.
    """
    _check_operands(x, (w,), axes, backend)
    chunks = all_reduce_chunks(_matmul_shape(x, (w,), rank_count(axes), x.shape[-2]))
    return _matmul_sum(x, w, axes, backend, chunks, matmul_format)


def _forward_with_operands(operation: Callable) -> Callable:
    """The forward of a custom derivative whose residuals are the operands."""

    def forward(x: jax.Array, weights: Any, *options: Any) -> tuple:
        return operation(x, weights, *options), (x, weights)

    return forward


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4, 5))
def _gather_matmul(
    x: jax.Array,
    weights: tuple,
    axes: MeshAxes,
    backend: str,
    tiling: CollectiveTiling,
    matmul_format: MatmulFormat,
) -> tuple[jax.Array, ...]:
    return BACKENDS[backend].gather_matmul(x, weights, axes, tiling, matmul_format)


def _gather_matmul_backward(
    axes: MeshAxes,
    backend: str,
    tiling: CollectiveTiling,
    matmul_format: MatmulFormat,
    residuals: tuple,
    cotangents: tuple,
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    x, weights = residuals
    cotangents = tuple(cotangent.astype(x.dtype) for cotangent in cotangents)  # [..., s, f_i]
    dgrad, wgrads = BACKENDS[backend].gather_matmul_backward(x, weights, cotangents, axes, tiling, matmul_format)
    return match_cotangent(x, dgrad), tuple(match_cotangent(w, wgrad) for w, wgrad in zip(weights, wgrads, strict=True))


_gather_matmul.defvjp(_forward_with_operands(_gather_matmul), _gather_matmul_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4, 5))
def _matmul_scatter(
    x: jax.Array,
    w: jax.Array,
    axes: MeshAxes,
    backend: str,
    tiling: CollectiveTiling,
    matmul_format: MatmulFormat,
) -> jax.Array:
    return BACKENDS[backend].matmul_scatter(x, w, axes, tiling, matmul_format)


def _matmul_scatter_backward(
    axes: MeshAxes,
    backend: str,
    tiling: CollectiveTiling,
    matmul_format: MatmulFormat,
    residuals: tuple,
    cotangent: jax.Array,
) -> tuple:
    x, w = residuals
    dgrad, wgrad = BACKENDS[backend].matmul_scatter_backward(x, w, cotangent, axes, tiling, matmul_format)
    return match_cotangent(x, dgrad), match_cotangent(w, wgrad)


_matmul_scatter.defvjp(_forward_with_operands(_matmul_scatter), _matmul_scatter_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4, 5))
def _matmul_sum(
    x: jax.Array, w: jax.Array, axes: MeshAxes, backend: str, chunks: int, matmul_format: MatmulFormat
) -> jax.Array:
    return BACKENDS[backend].matmul_sum(x, w, axes, chunks, matmul_format)


def _matmul_sum_backward(
    axes: MeshAxes, backend: str, chunks: int, matmul_format: MatmulFormat, residuals: tuple, cotangent: jax.Array
) -> tuple:
    """The cotangent of a sum is the same on all ranks, so no collective is needed."""
    x, w = residuals
    gradient = gradient_operand(cotangent, matmul_format)
    dgrad = input_gradient(gradient, operand(w, matmul_format))
    return match_cotangent(x, dgrad), match_cotangent(w, weight_gradient(operand(x, matmul_format), gradient))


_matmul_sum.defvjp(_forward_with_operands(_matmul_sum), _matmul_sum_backward)


def _matmul_shape(x: jax.Array, weights: Sequence[jax.Array], ranks: int, shard_positions: int) -> MatmulShape:
    return MatmulShape(
        rows=math.prod(x.shape[:-2]) * shard_positions,
        inner=x.shape[-1],
        columns=sum(w.size // x.shape[-1] for w in weights),
        ranks=ranks,
        shard_positions=shard_positions,
    )


def _check_tiling(tiling: CollectiveTiling | None, shape: MatmulShape) -> CollectiveTiling:
    """The tiling, or the default one. Raises ValueError if its pieces do not divide a rank's positions."""
    tiling = tiling or choose_tiling(shape, device_kind())
    if not tiling_fits(shape, tiling):
        raise ValueError(
            f"{tiling.parts} parts ({tiling.chunks} chunks x {tiling.rings} rings) do not divide the "
            f"{shape.shard_positions} positions of a rank; use a CollectiveTiling that does"
        )
    return tiling


def _check_operands(x: jax.Array, weights: Sequence[jax.Array], axes: MeshAxes, backend: str) -> None:
    """Raises ValueError for operands that no backend takes."""
    operands = f"x {_describe(x)} and {', '.join(map(_describe, weights))} over {_describe_axes(axes)}"
    if backend not in BACKENDS:
        raise ValueError(f"backend is {backend!r}; choose one of {', '.join(BACKENDS)}")
    rank_count(axes)  # raises where the mesh lacks an axis
    if x.ndim < 2 or not weights or any(w.ndim != 2 for w in weights):
        raise ValueError(f"a collective matmul needs x [..., s, d] and weights [d, f]; it got {operands}")
    for w in weights:
        rows = w.shape[0]
        if rows != x.shape[-1]:
            raise ValueError(f"a weight has {rows} rows and x has {x.shape[-1]} columns: {operands}")
    for array in (x, *weights):
        if array.dtype.name not in DTYPES or array.dtype != x.dtype:
            raise ValueError(f"a collective matmul takes one precision of {', '.join(DTYPES)}; it got {operands}")


def _describe(x: jax.Array) -> str:
    return f"{x.dtype.name}[{', '.join(map(str, x.shape))}]"


def _describe_axes(axes: MeshAxes) -> str:
    return " x ".join(map(repr, axes)) or "no axis"
