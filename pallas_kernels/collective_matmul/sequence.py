"""Between positions that all ranks have and positions that they divide among them."""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.varying import rank_count


def gather_sequence(x: jax.Array, axes: tuple[str, ...], axis: int) -> jax.Array:
    """All positions, equal on all ranks, of those of each, along one dimension.

    Its gradient is this rank's part of the result's, which is equal on all ranks too: nothing travels.
    """
    return lax.all_gather(x, axes, axis=axis, tiled=True, to="invarying")


def split_sequence(x: jax.Array, axes: tuple[str, ...], axis: int) -> jax.Array:
    """This rank's positions of what is equal on all ranks, along one dimension: the inverse of `whole`.

    Raises:
        ValueError: The ranks do not divide the positions.
    """
    ranks, positions = rank_count(axes), x.shape[axis]
    if positions % ranks:
        raise ValueError(f"{ranks} ranks do not divide the {positions} positions of {x.dtype}{list(x.shape)}")
    return (_divided if jnp.issubdtype(x.dtype, jnp.inexact) else _cut)(x, axes, axis)


def _cut(x: jax.Array, axes: tuple[str, ...], axis: int) -> jax.Array:
    share = x.shape[axis] // rank_count(axes)
    return lax.dynamic_slice_in_dim(x, lax.axis_index(axes) * share, share, axis=axis)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _divided(x: jax.Array, axes: tuple[str, ...], axis: int) -> jax.Array:
    return _cut(x, axes, axis)


def _forward(x: jax.Array, axes: tuple[str, ...], axis: int) -> tuple[jax.Array, None]:
    return _cut(x, axes, axis), None


def _backward(axes: tuple[str, ...], axis: int, kept: None, gradient: jax.Array) -> tuple[jax.Array]:
    """Gathered: what JAX would make of it is a sum of blocks that are zero but for one, of n times the bytes."""
    return (gather_sequence(gradient, axes, axis),)


_divided.defvjp(_forward, _backward)
