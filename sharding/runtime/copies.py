"""The meshes of a stage whose unit has copies of its pipeline, and arrays passed between them without a copy.

Programs of microbatches run on the submesh of one copy. What runs once a step runs on the mesh of all copies, which has
one more data axis: weights are gathered and gradients are reduced over it, and master weights and optimizer state are
divided over it too. Either kind of array is a view of the other, made of the same buffers.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from sharding.axes import Axes
from sharding.runtime.stages.master_weights import is_partition_spec
from sharding.trees import Tree

COPY_AXIS = "copy"
"""The first axis of a mesh of several copies."""


def is_local_mesh(mesh: Mesh) -> bool:
    """Whether this process has devices of a mesh."""
    return any(device.process_index == jax.process_index() for device in mesh.devices.flat)


@dataclasses.dataclass(frozen=True)
class CopyMeshes:
    """The meshes of a stage.

    Attributes:
        by_copy: The submesh of each copy of its unit; all have the same axes.
    """

    by_copy: tuple[Mesh, ...]

    @functools.cached_property
    def all_copies(self) -> Mesh:
        """The mesh of all copies, with the axis of copies first; that of the only copy as it is."""
        if len(self.by_copy) == 1:
            return self.by_copy[0]
        return Mesh(np.stack([mesh.devices for mesh in self.by_copy]), (COPY_AXIS, *self.by_copy[0].axis_names))

    def axes_of_all(self, axes: Axes) -> Axes:
        """What the axes of the mesh of all copies are for, by what those of a submesh are for."""
        return axes if len(self.by_copy) == 1 else dataclasses.replace(axes, data=(COPY_AXIS, *axes.data))

    def split(self, tree: Tree) -> tuple[Tree | None, ...]:
        """Arrays on the mesh of all copies as each copy has them; None for a copy without devices of this process.

        Raises:
            ValueError: An array is divided over the copies.
        """
        if len(self.by_copy) == 1:
            return (tree,)
        return tuple(
            jax.tree.map(functools.partial(_view_on, mesh), tree) if is_local_mesh(mesh) else None
            for mesh in self.by_copy
        )

    def join(self, trees: Sequence[Tree | None], specs: Tree) -> Tree:
        """Arrays `[r, ...]` of each copy as arrays `[copies * r, ...]` on the mesh of all copies.

        Args:
            trees: The arrays by copy; None for a copy without devices of this process.
            specs: Their specs on the submesh of a copy, a tree like them.
        """
        local = [tree for tree in trees if tree is not None]
        if len(self.by_copy) == 1:
            return local[0]

        def join_leaf(spec: P, *arrays: jax.Array) -> jax.Array:
            whole = self._joined(spec, arrays[0])
            shards = [shard.data for array in arrays for shard in array.addressable_shards]
            return jax.make_array_from_single_device_arrays(whole.shape, whole.sharding, shards, dtype=whole.dtype)

        return jax.tree.map(join_leaf, specs, *local, is_leaf=is_partition_spec)

    def joined_shapes(self, tree: Tree, specs: Tree) -> Tree:
        """Shapes, types and shardings of what `join` returns, by those of one copy's arrays."""
        return tree if len(self.by_copy) == 1 else jax.tree.map(self._joined, specs, tree, is_leaf=is_partition_spec)

    def _joined(self, spec: P, leaf: Any) -> jax.ShapeDtypeStruct:
        first, *others = spec
        names = first if isinstance(first, tuple) else () if first is None else (first,)
        sharding = NamedSharding(self.all_copies, P((COPY_AXIS, *names), *others))
        rows, *shape = leaf.shape
        return jax.ShapeDtypeStruct((len(self.by_copy) * rows, *shape), leaf.dtype, sharding=sharding)


def _view_on(mesh: Mesh, array: jax.Array) -> jax.Array:
    """The array on the submesh of a copy, of those of its shards that are there."""
    assert isinstance(array.sharding, NamedSharding)
    spec = array.sharding.spec
    if any(COPY_AXIS in (entry if isinstance(entry, tuple) else (entry,)) for entry in spec):
        raise ValueError(f"an array on {array.sharding} is divided over copies; gather it over {COPY_AXIS!r} first")
    devices = frozenset(mesh.devices.flat)
    shards = [shard.data for shard in array.addressable_shards if shard.device in devices]
    return jax.make_array_from_single_device_arrays(array.shape, NamedSharding(mesh, spec), shards, dtype=array.dtype)
