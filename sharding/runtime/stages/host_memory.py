"""Arrays in the pinned memory of a device's host: loaded where a program computes with them, and stored back."""

from typing import Any

import jax

HOST_MEMORY = "pinned_host"
"""Kind of memory (`jax.Device.addressable_memories`) of offloaded residuals, and of master weights kept on the host."""


def on_host(shardings: Any) -> Any:
    """The same shardings in the hosts' memory."""
    return jax.tree.map(lambda sharding: sharding.with_memory_kind(HOST_MEMORY), shardings)


def load(tree: Any) -> Any:
    """Traced arrays in the devices' memory; those that are there already as they are."""

    def load_leaf(leaf: jax.Array) -> jax.Array:
        return jax.device_put(leaf, jax.memory.Space.Device) if _is_on_host(leaf) else leaf

    return jax.tree.map(load_leaf, tree)


def store(tree: Any, like: Any) -> Any:
    """Traced arrays in the memory in which a tree of the same structure has its arrays."""

    def store_leaf(leaf: jax.Array, other: jax.Array) -> jax.Array:
        return jax.device_put(leaf, jax.memory.Space.Host) if _is_on_host(other) else leaf

    return jax.tree.map(store_leaf, tree, like)


def _is_on_host(leaf: jax.Array) -> bool:
    return jax.typeof(leaf).memory_space == jax.memory.Space.Host
