"""Conversions between positions that all ranks have and positions divided among them (sequence parallelism)."""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.varying import rank_count


def gather_sequence(x: jax.Array, axes: tuple[str, ...], axis: int) -> jax.Array:
    """All positions, the same on all ranks: [..., s / n, ...] -> [..., s, ...].

    Its gradient is this rank's shard of the cotangent, which is the same on all ranks too, so no collective is needed.

    Args:
        x: This rank's positions.
        axes: Mesh axes of the n ranks.
        axis: The dimension of the positions.
    """
    return lax.all_gather(x, axes, axis=axis, tiled=True, to="invarying")


def split_sequence(x: jax.Array, axes: tuple[str, ...], axis: int) -> jax.Array:
    """This rank's positions of an array that is the same on all ranks; the inverse of `gather_sequence`.

    Raises:
        ValueError: The ranks do not divide the positions.
    """
    ranks, positions = rank_count(axes), x.shape[axis]
    if positions % ranks:
        raise ValueError(f"{ranks} ranks do not divide the {positions} positions of {x.dtype}{list(x.shape)}")
    return (_split if jnp.issubdtype(x.dtype, jnp.inexact) else _slice)(x, axes, axis)


def _slice(x: jax.Array, axes: tuple[str, ...], axis: int) -> jax.Array:
    shard_size = x.shape[axis] // rank_count(axes)
    return lax.dynamic_slice_in_dim(x, lax.axis_index(axes) * shard_size, shard_size, axis=axis)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _split(x: jax.Array, axes: tuple[str, ...], axis: int) -> jax.Array:
    return _slice(x, axes, axis)


def _forward(x: jax.Array, axes: tuple[str, ...], axis: int) -> tuple[jax.Array, None]:
    return _slice(x, axes, axis), None


def _backward(axes: tuple[str, ...], axis: int, residuals: None, cotangent: jax.Array) -> tuple[jax.Array]:
    """An all-gather; JAX's own transpose would sum arrays that are zero but for one block, n times the bytes."""
    return (gather_sequence(cotangent, axes, axis),)


_split.defvjp(_forward, _backward)
