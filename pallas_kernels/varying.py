"""Mesh axes inside `jax.shard_map`: their number of ranks, the axes that a value varies over, and marking values."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import ShapedArray


def rank_count(axes: tuple[str, ...]) -> int:
    """Number of ranks along some mesh axes together. Raises ValueError if the mesh lacks one of them."""
    try:
        return lax.axis_size(axes)
    except NameError as error:
        known = ", ".join(jax.sharding.get_abstract_mesh().axis_names) or "none"
        named = " and ".join(map(repr, axes))
        raise ValueError(f"there is no mesh axis {named} here; the axes are {known}") from error


def varying_axes(leaf: Any) -> frozenset[str]:
    """Mesh axes over which a value inside `jax.shard_map`, or an abstract one, differs between devices."""
    abstract_value: Any = leaf if isinstance(leaf, ShapedArray) else jax.typeof(leaf)
    if hasattr(abstract_value, "vma"):
        return frozenset(abstract_value.vma)
    return frozenset(abstract_value.manual_axis_type.varying)  # jax 0.12


def make_varying(tree: Any, axes: tuple[str, ...]) -> Any:
    """Marks every leaf as varying over `axes`, so that JAX does not sum its gradient over them."""

    def mark(leaf: jax.Array) -> jax.Array:
        missing = tuple(axis for axis in axes if axis not in varying_axes(leaf))
        return lax.pcast(leaf, missing, to="varying") if missing else leaf

    return jax.tree.map(mark, tree)


def zeros_as(*arrays: jax.Array, shape: tuple[int, ...], dtype: jax.typing.DTypeLike) -> jax.Array:
    """Zeros that vary over the mesh axes that any of the arrays varies over."""
    return make_varying(jnp.zeros(shape, dtype), _all_varying_axes(arrays))


def equally_varying(*arrays: jax.Array) -> list[jax.Array]:
    """Marks all arrays as varying over the mesh axes that any of them varies over."""
    axes = _all_varying_axes(arrays)
    return [make_varying(array, axes) for array in arrays]


def _all_varying_axes(arrays: tuple[jax.Array, ...]) -> tuple[str, ...]:
    return tuple(sorted(frozenset().union(*map(varying_axes, arrays))))


def match_cotangent(primal: jax.Array, cotangent: jax.Array) -> jax.Array:
    """A cotangent as JAX requires it of a `custom_vjp`: in the primal's precision, varying over the primal's axes.

    Over axes along which the primal is the same on all ranks, the ranks' cotangents are summed.
    """
    primal_axes = varying_axes(primal)
    cotangent = cotangent.astype(primal.dtype)
    if summed_axes := tuple(sorted(varying_axes(cotangent) - primal_axes)):
        cotangent = lax.psum(cotangent, summed_axes)
    return make_varying(cotangent, tuple(sorted(primal_axes)))
