"""The meshes of a stage of a unit with pipeline replicas, and arrays passed between them without copying.

Programs of microbatches run on the submesh of one pipeline replica. What runs once a step runs on the mesh of all
pipeline replicas, which has one more data axis: weights are gathered and gradients are reduced over it, and master
weights and optimizer state are divided over it too. Either kind of array is a view of the other, made of the same
buffers.
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

PIPELINE_REPLICA_AXIS = "pipeline_replica"
"""The first axis of a mesh of several pipeline replicas."""


def is_local_mesh(mesh: Mesh) -> bool:
    """Whether this process has devices of a mesh."""
    return any(device.process_index == jax.process_index() for device in mesh.devices.flat)


@dataclasses.dataclass(frozen=True)
class ReplicaMeshes:
    """The meshes of a stage.

    Attributes:
        by_pipeline_replica: The submesh of each pipeline replica of its unit; all have the same axes.
    """

    by_pipeline_replica: tuple[Mesh, ...]

    @functools.cached_property
    def all_pipeline_replicas(self) -> Mesh:
        """The mesh of all pipeline replicas, with their axis first; the mesh of the only one as it is."""
        if len(self.by_pipeline_replica) == 1:
            return self.by_pipeline_replica[0]
        return Mesh(
            np.stack([mesh.devices for mesh in self.by_pipeline_replica]),
            (PIPELINE_REPLICA_AXIS, *self.by_pipeline_replica[0].axis_names),
        )

    def axes_of_all(self, axes: Axes) -> Axes:
        """Returns the `Axes` of the mesh of all pipeline replicas, given the `Axes` of a submesh."""
        return (
            axes
            if len(self.by_pipeline_replica) == 1
            else dataclasses.replace(axes, data=(PIPELINE_REPLICA_AXIS, *axes.data))
        )

    def split(self, tree: Tree) -> tuple[Tree | None, ...]:
        """Arrays on the mesh of all pipeline replicas as each of them has them; None for one without local devices.

        Raises:
            ValueError: An array is divided over the pipeline replicas.
        """
        if len(self.by_pipeline_replica) == 1:
            return (tree,)
        return tuple(
            jax.tree.map(functools.partial(_view_on, mesh), tree) if is_local_mesh(mesh) else None
            for mesh in self.by_pipeline_replica
        )

    def join(self, trees: Sequence[Tree | None], specs: Tree) -> Tree:
        """Arrays `[r, ...]` of each pipeline replica as arrays `[pipeline_replicas * r, ...]` on the mesh of all.

        Args:
            trees: The arrays by pipeline replica; None for a pipeline replica without devices of this process.
            specs: Their specs on the submesh of a pipeline replica, a tree like them.
        """
        local = [tree for tree in trees if tree is not None]
        if len(self.by_pipeline_replica) == 1:
            return local[0]

        def join_leaf(spec: P, *arrays: jax.Array) -> jax.Array:
            whole = self._joined(spec, arrays[0])
            shards = [shard.data for array in arrays for shard in array.addressable_shards]
            return jax.make_array_from_single_device_arrays(whole.shape, whole.sharding, shards, dtype=whole.dtype)

        return jax.tree.map(join_leaf, specs, *local, is_leaf=is_partition_spec)

    def joined_shapes(self, tree: Tree, specs: Tree) -> Tree:
        """Shapes, types and shardings of what `join` returns, given the ones of one pipeline replica's arrays."""
        return (
            tree
            if len(self.by_pipeline_replica) == 1
            else jax.tree.map(self._joined, specs, tree, is_leaf=is_partition_spec)
        )

    def _joined(self, spec: P, leaf: Any) -> jax.ShapeDtypeStruct:
        first, *others = spec
        names = first if isinstance(first, tuple) else () if first is None else (first,)
        sharding = NamedSharding(self.all_pipeline_replicas, P((PIPELINE_REPLICA_AXIS, *names), *others))
        rows, *shape = leaf.shape
        return jax.ShapeDtypeStruct((len(self.by_pipeline_replica) * rows, *shape), leaf.dtype, sharding=sharding)


def _view_on(mesh: Mesh, array: jax.Array) -> jax.Array:
    """The array on the submesh of a pipeline replica, made of the shards that are there."""
    assert isinstance(array.sharding, NamedSharding)
    spec = array.sharding.spec
    if any(PIPELINE_REPLICA_AXIS in (entry if isinstance(entry, tuple) else (entry,)) for entry in spec):
        raise ValueError(
            f"an array on {array.sharding} is divided over pipeline replicas; gather it over "
            f"{PIPELINE_REPLICA_AXIS!r} first"
        )
    devices = frozenset(mesh.devices.flat)
    shards = [shard.data for shard in array.addressable_shards if shard.device in devices]
    return jax.make_array_from_single_device_arrays(array.shape, NamedSharding(mesh, spec), shards, dtype=array.dtype)
