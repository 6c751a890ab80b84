"""Splits what `jax.vjp` returns, so that only activations pass from a forward program to a backward program.

The function that `jax.vjp` returns is a pytree. Besides activations it holds the very values that it was made from:
weights, inputs, the batch. The backward program has these values anyway; returned from the forward program they would
be copies, one for each microbatch in flight. They are recognised by identity while tracing and left out. `programs.py`
and the compiled pipeline call `split_vjp` in their forwards.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import jax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from pallas_kernels.varying import varying_axes
from sharding.runtime.stages.host_memory import HOST_MEMORY

LeafSource = Literal["saved", "available", "static"]
"""Where the backward program gets a leaf from: the residuals, its own operands, or the structure itself."""


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True, eq=False)
class VjpStructure:
    """A vjp function without its arrays.

    Attributes:
        tree_structure: The pytree structure.
        sources: For every leaf where it comes from, and with it the leaf's position among the available values, or the
            leaf itself where it is static; None for a saved one.
    """

    tree_structure: Any
    sources: tuple[tuple[LeafSource, Any], ...]

    def restore(self, residuals: Sequence[jax.Array], available: Sequence[jax.Array]) -> Any:
        """The vjp function again.

        Args:
            residuals: The saved leaves, in the order in which `split_vjp` returned them.
            available: The same values, in the same order, as `split_vjp` was given.
        """
        saved = iter(residuals)
        leaves = []
        for source, value in self.sources:
            if source == "saved":
                leaves.append(next(saved))
            else:
                leaves.append(available[value] if source == "available" else value)
        return jax.tree.unflatten(self.tree_structure, leaves)


def saved_sharding(leaf: jax.Array, mesh: Mesh) -> NamedSharding:
    """Where a traced array lies that one program of a mesh saves for another, its devices stacked along a dimension."""
    axes = tuple(axis for axis in mesh.axis_names if axis in varying_axes(leaf))
    on_host = jax.typeof(leaf).memory_space == jax.memory.Space.Host
    return NamedSharding(mesh, P(axes), memory_kind=HOST_MEMORY if on_host else None)


def split_vjp(vjp: Any, available: Sequence[jax.Array]) -> tuple[list[jax.Array], VjpStructure]:
    """The residuals that the forward program must return, and the rest; to be called in the trace that made the vjp.

    Args:
        vjp: What `jax.vjp` returned.
        available: Values that the backward program will have: the same objects that the differentiated function used.
    """
    positions = {id(value): position for position, value in enumerate(available)}
    leaves, tree_structure = jax.tree.flatten(vjp)
    residuals: list[jax.Array] = []
    sources: list[tuple[LeafSource, Any]] = []
    for leaf in leaves:
        if not isinstance(leaf, jax.Array):
            sources.append(("static", leaf))
        elif id(leaf) in positions:
            sources.append(("available", positions[id(leaf)]))
        else:
            sources.append(("saved", None))
            residuals.append(leaf)
    return residuals, VjpStructure(tree_structure, tuple(sources))
