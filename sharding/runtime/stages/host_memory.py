"""Arrays in the pinned memory of a device's host: loaded where a program computes with them, and stored back."""

from typing import Any

import jax
from jax.sharding import NamedSharding

HOST_MEMORY = "pinned_host"
"""Kind of memory (`jax.Device.addressable_memories`) of offloaded residuals, and of master weights kept on the host."""


def on_host(shardings: Any) -> Any:
    """The same shardings in the hosts' memory."""
    return jax.tree.map(lambda sharding: sharding.with_memory_kind(HOST_MEMORY), shardings)


def is_on_host(shardings: Any) -> bool:
    """Whether some of the shardings are in the hosts' memory."""
    return any(sharding.memory_kind == HOST_MEMORY for sharding in jax.tree.leaves(shardings))


def load(tree: Any, shardings: Any, after: Any = ()) -> Any:
    """Traced arrays in the devices' memory, given where they lie; what lies there already stays as it is.

    Args:
        tree: The arrays.
        shardings: Their shardings.
        after: Arrays that are computed before these are read. Left to itself, XLA loads all arrays of a program at
            once.
    """
    if after:
        tree, _ = jax.lax.optimization_barrier((tree, after))
    return _in_space(jax.memory.Space.Device, tree, shardings)


def store(tree: Any, shardings: Any) -> Any:
    """Traced arrays of the devices' memory in the memory where they are to lie."""
    return _in_space(jax.memory.Space.Host, tree, shardings)


def _in_space(space: jax.memory.Space, tree: Any, shardings: Any) -> Any:
    """Sends the arrays of the hosts' memory, by their shardings, to a memory space, and leaves the others."""

    def send(leaf: jax.Array, sharding: NamedSharding) -> jax.Array:
        return jax.device_put(leaf, space) if sharding.memory_kind == HOST_MEMORY else leaf

    return jax.tree.map(send, tree, shardings)
