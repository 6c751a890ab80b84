"""The matmuls of tensor parallelism with their collectives, differentiable; they run inside `jax.shard_map`.

Forward, input gradient and weight gradient are one call of a backend each, so that each can overlap its collective with
its matmuls. What is kept for the backward is what came in: a rank's own positions and weights.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax

from pallas_kernels.collective_matmul import mosaic, reference, ring
from pallas_kernels.collective_matmul.reference import input_gradient, weight_gradient
from pallas_kernels.collective_matmul.tiling import (
    CollectiveTiling,
    MatmulShape,
    all_reduce_chunks,
    choose_tiling,
    device_kind,
    tiling_fits,
)
from pallas_kernels.varying import match_cotangent, rank_count

Axes = tuple[str, ...]
DTYPES = ("float32", "bfloat16", "float16")


class Backend(NamedTuple):
    """How the collectives travel: the functions of `reference`, under their names."""

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
    axes: Axes,
    *,
    backend: str = "ring",
    tiling: CollectiveTiling | None = None,
    transposed: bool = False,
    dtype: jax.typing.DTypeLike | None = None,
) -> tuple[jax.Array, ...]:
    """Every weight's product with the positions of all ranks, which are gathered once.

    Args:
        x: This rank's positions `[..., s / n, d]`.
        weights: This rank's columns of each weight, `[d, f_i]`.
        axes: Mesh axes of the n ranks.
        backend: `reference`, `ring`, or `mosaic`, which goes around the ring where its kernels cannot run.
        tiling: How the positions are cut; by default what was measured on such a device, else whole shares on one ring.
        transposed: The weights are `[f_i, d]`. (Given w.T, its copy would be kept for the backward.)
        dtype: Of the results; by default that of x.

    Returns:
        `[..., s, f_i]` for every weight.

    Raises:
        ValueError: An axis, a backend, shapes or precisions that do not fit, with the shapes.
    """
    _check(x, weights, axes, backend, transposed)
    tiling = _tiling(tiling, _work(x, weights, rank_count(axes), x.shape[-2]))
    return _gathered(x, weights, axes, backend, tiling, transposed, np.dtype(dtype or x.dtype))


def matmul_reduce_scatter(
    x: jax.Array, w: jax.Array, axes: Axes, *, backend: str = "ring", tiling: CollectiveTiling | None = None
) -> jax.Array:
    """This rank's positions of the ranks' sum of x @ w.

    Args:
        x: All positions `[..., s, d]`, of d the part that goes with this rank's rows of the weight.
        w: These rows, `[d, f]`.
        axes, backend, tiling: As in `all_gather_matmul`.

    Returns:
        `[..., s / n, f]`.

    Raises:
        ValueError: As `all_gather_matmul`, or the n ranks do not divide the positions.
    """
    _check(x, (w,), axes, backend)
    ranks, positions = rank_count(axes), x.shape[-2]
    if positions % ranks:
        raise ValueError(
            f"matmul_reduce_scatter got x {list(x.shape)}: the {ranks} ranks of {_named(axes)} do not divide "
            f"{positions} positions; use a multiple of {ranks}"
        )
    return _scattered(x, w, axes, backend, _tiling(tiling, _work(x, (w,), ranks, positions // ranks)))


def matmul_all_reduce(x: jax.Array, w: jax.Array, axes: Axes, *, backend: str = "ring") -> jax.Array:
    """The ranks' sum of x @ w on all of them, for where the positions are not divided.

    Args:
        x: All positions `[..., s, d]`, of d the part that goes with this rank's rows of the weight.
        w: These rows, `[d, f]`.
        axes, backend: As in `all_gather_matmul`; `ring` sums chunk by chunk.

    Returns:
        `[..., s, f]`, equal on all ranks.
    """
    _check(x, (w,), axes, backend)
    return _summed(x, w, axes, backend, all_reduce_chunks(_work(x, (w,), rank_count(axes), x.shape[-2])))


def _keeping(of: Callable) -> Callable:
    """The forward that keeps what came in."""

    def forward(x: jax.Array, weights: Any, *how: Any) -> tuple:
        return of(x, weights, *how), (x, weights)

    return forward


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4, 5, 6))
def _gathered(
    x: jax.Array, weights: tuple, axes: Axes, backend: str, tiling: CollectiveTiling, transposed: bool, dtype: np.dtype
) -> tuple[jax.Array, ...]:
    return BACKENDS[backend].gather_matmul(x, _turned(weights, transposed), axes, tiling, dtype)


def _gathered_backward(
    axes: Axes, backend: str, tiling: CollectiveTiling, transposed: bool, dtype: np.dtype, kept: tuple, gradients: tuple
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    x, weights = kept
    gradients = tuple(of.astype(x.dtype) for of in gradients)
    back, made = BACKENDS[backend].gather_matmul_backward(x, _turned(weights, transposed), gradients, axes, tiling)
    if transposed:  # behind a barrier: XLA's CPU compiler folds it into a product that its runtime lacks in bfloat16
        made = _turned(lax.optimization_barrier(made), transposed)
    return match_cotangent(x, back), tuple(match_cotangent(w, of) for w, of in zip(weights, made, strict=True))


def _turned(weights: tuple[jax.Array, ...], transposed: bool) -> tuple[jax.Array, ...]:
    return tuple(w.T for w in weights) if transposed else weights


_gathered.defvjp(_keeping(_gathered), _gathered_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def _scattered(x: jax.Array, w: jax.Array, axes: Axes, backend: str, tiling: CollectiveTiling) -> jax.Array:
    return BACKENDS[backend].matmul_scatter(x, w, axes, tiling)


def _scattered_backward(axes: Axes, backend: str, tiling: CollectiveTiling, kept: tuple, gradient: jax.Array) -> tuple:
    x, w = kept
    back, made = BACKENDS[backend].matmul_scatter_backward(x, w, gradient, axes, tiling)
    return match_cotangent(x, back), match_cotangent(w, made)


_scattered.defvjp(_keeping(_scattered), _scattered_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def _summed(x: jax.Array, w: jax.Array, axes: Axes, backend: str, chunks: int) -> jax.Array:
    return BACKENDS[backend].matmul_sum(x, w, axes, chunks)


def _summed_backward(axes: Axes, backend: str, chunks: int, kept: tuple, gradient: jax.Array) -> tuple:
    """The gradient of a sum is the same on all ranks: nothing travels."""
    x, w = kept
    return match_cotangent(x, input_gradient(gradient, w)), match_cotangent(w, weight_gradient(x, gradient))


_summed.defvjp(_keeping(_summed), _summed_backward)


def _work(x: jax.Array, weights: Sequence[jax.Array], ranks: int, share: int) -> MatmulShape:
    columns = sum(w.size // x.shape[-1] for w in weights)
    return MatmulShape(math.prod(x.shape[:-2]) * share, x.shape[-1], columns, ranks, share)


def _tiling(given: CollectiveTiling | None, work: MatmulShape) -> CollectiveTiling:
    tiling = given or choose_tiling(work, device_kind())
    if not tiling_fits(work, tiling):
        raise ValueError(
            f"{tiling.parts} parts ({tiling.chunks} chunks x {tiling.rings} rings) do not divide the {work.share_positions} "
            f"positions of a rank; use a Tiling that does"
        )
    return tiling


def _check(x: jax.Array, weights: Sequence[jax.Array], axes: Axes, backend: str, transposed: bool = False) -> None:
    """Raises ValueError where no backend could do it."""
    given = f"x {_shape(x)} and {', '.join(map(_shape, weights))} over {_named(axes)}"
    if backend not in BACKENDS:
        raise ValueError(f"backend is {backend!r}; choose one of {', '.join(BACKENDS)}")
    rank_count(axes)
    if x.ndim < 2 or not weights or any(w.ndim != 2 for w in weights):
        raise ValueError(f"a collective matmul needs x [..., s, d] and weights [d, f]; it got {given}")
    for w in weights:
        rows = w.shape[1 if transposed else 0]
        if rows != x.shape[-1]:
            raise ValueError(f"{rows} rows of a weight meet {x.shape[-1]} columns of x: {given}")
    for array in (x, *weights):
        if array.dtype.name not in DTYPES or array.dtype != x.dtype:
            raise ValueError(f"a collective matmul takes one precision of {', '.join(DTYPES)}; it got {given}")


def _shape(x: jax.Array) -> str:
    return f"{x.dtype.name}[{', '.join(map(str, x.shape))}]"


def _named(axes: Axes) -> str:
    return " x ".join(map(repr, axes)) or "no axis"
