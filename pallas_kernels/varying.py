"""Mesh axes inside `jax.shard_map`: how many ranks they have, which a value varies over, and how to change that."""

from typing import Any

import jax
from jax import lax


def rank_count(axes: tuple[str, ...]) -> int:
    """Number of ranks along some mesh axes together. Raises ValueError if the mesh lacks one of them."""
    try:
        return lax.axis_size(axes)
    except NameError as error:
        known = ", ".join(jax.sharding.get_abstract_mesh().axis_names) or "none"
        wanted = " and ".join(map(repr, axes))
        raise ValueError(f"there is no mesh axis {wanted} here; the axes are {known}") from error


def varying_axes(leaf: Any) -> frozenset[str]:
    """Mesh axes over which a value inside `jax.shard_map` differs between devices."""
    kind = jax.typeof(leaf)
    return frozenset(kind.vma if hasattr(kind, "vma") else kind.manual_axis_type.varying)


def make_varying(tree: Any, axes: tuple[str, ...]) -> Any:
    """Marks every leaf as differing over `axes`, so that its gradient is not summed over them behind our back."""

    def one(leaf: jax.Array) -> jax.Array:
        missing = tuple(axis for axis in axes if axis not in varying_axes(leaf))
        return lax.pcast(leaf, missing, to="varying") if missing else leaf

    return jax.tree.map(one, tree)


def match_cotangent(primal: jax.Array, cotangent: jax.Array) -> jax.Array:
    """A cotangent as JAX wants it of a `custom_vjp`: in the primal's precision, and varying over the primal's axes.

    Over axes along which the primal is the same everywhere, the ranks' cotangents add up.
    """
    wanted, given = varying_axes(primal), varying_axes(cotangent)
    cotangent = cotangent.astype(primal.dtype)
    if summed := tuple(sorted(given - wanted)):
        cotangent = lax.psum(cotangent, summed)
    return make_varying(cotangent, tuple(sorted(wanted)))
