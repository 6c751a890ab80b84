"""Which mesh axes a value varies over inside `jax.shard_map`, and how to make it vary over more."""

from typing import Any

import jax
from jax import lax


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
