"""The base class of a stage's programs on a mesh: their channels, and the sums over microbatches."""

import functools
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from sharding.axes import Axes
from sharding.runtime.stages.definition import Arrays, Microbatches, StageInterface, module_of
from sharding.runtime.stages.named_programs import named_jit
from sharding.runtime.stages.weight_specs import device_count_along, is_partition_spec, replicated_data_axes
from sharding.trees import Tree


def add_gradients(totals: Tree, new: Tree) -> Tree:
    """Adds a microbatch's gradients to a replica's gradients `[1, ...]` of the microbatches so far, in float32."""
    return jax.tree.map(lambda total, addend: total + addend.astype(jnp.float32)[None], totals, new)


Interface = TypeVar("Interface", bound=StageInterface)


class MeshPrograms(Generic[Interface]):
    """Programs of a stage on a mesh: for one microbatch (`StagePrograms`), or for a step (`CompiledPipeline`).

    Args:
        definition: The stage's parameters, and the arrays that it reads and sends.
        mesh: The mesh.
        axes: By module of the stage, what the axes of the mesh are for.
        batch_shapes: Shapes of the arrays of a global batch that the stage reads.
        differentiated_inputs: Input channels whose gradient is needed.

    Attributes:
        definition, mesh, axes, batch_shapes, differentiated_inputs: As given.
        output_shapes, channel_shapes: Shape and dtype of each output channel, and of every channel, of a microbatch.
        channel_shardings: Shardings of the activations of each channel.
        loss_names: Names of its losses, sorted; empty where it has none.
        loss_specs: Specs of its losses.
    """

    output_shapes: Mapping[str, jax.ShapeDtypeStruct]
    channel_shapes: Mapping[str, jax.ShapeDtypeStruct]
    loss_names: tuple[str, ...]
    loss_specs: dict[str, P]

    def __init__(
        self,
        definition: Interface,
        mesh: Mesh,
        axes: Mapping[str, Axes],
        batch_shapes: Microbatches,
        differentiated_inputs: frozenset[str],
    ) -> None:
        self.definition, self.mesh, self.axes = definition, mesh, axes
        self.batch_shapes, self.differentiated_inputs = batch_shapes, differentiated_inputs
        self._channel_specs = definition.channel_specs(axes)
        self.channel_shardings = {name: NamedSharding(mesh, spec) for name, spec in self._channel_specs.items()}
        rows = {module: P(None, axes[module].data) for module in batch_shapes.arrays}
        self._batch_specs = Microbatches(
            {module: dict.fromkeys(arrays, rows[module]) for module, arrays in batch_shapes.arrays.items()}, P()
        )

    @functools.cached_property
    def gradient_specs(self) -> Tree:
        """Specs of the unreduced gradients, one for each replica that holds the parameter, stacked first."""
        return self._map_trained(lambda axes, spec: P(replicated_data_axes(spec, axes), *spec))

    def _map_trained(self, function: Callable, *trees: Tree) -> Tree:
        """Maps `function(axes of its layers, spec, ...)` over the parameters that train."""
        return {
            key: jax.tree.map(
                functools.partial(function, self.definition.axes_of_layers(key, self.axes)),
                self.definition.partition_specs[key],
                *(tree[key] for tree in trees),
                is_leaf=is_partition_spec,
            )
            for key in sorted(self.definition.trained_keys)
        }

    @functools.cached_property
    def zero_gradients(self) -> Callable[[], Tree]:
        """The program that makes gradients of zero in float32, `[replicas, ...]` each."""

        def gradient_shape(axes: Axes, spec: P, shape: jax.ShapeDtypeStruct) -> tuple[int, ...]:
            return (device_count_along(self.mesh, replicated_data_axes(spec, axes)), *shape.shape)

        shapes = self._map_trained(gradient_shape, self.definition.shapes)
        shardings = jax.tree.map(
            lambda spec: NamedSharding(self.mesh, spec), self.gradient_specs, is_leaf=is_partition_spec
        )

        def zeros() -> Tree:
            return jax.tree.map(jnp.zeros, shapes, is_leaf=lambda leaf: isinstance(leaf, tuple))

        return named_jit(zeros, self.definition.stage_id, "zero_gradients", out_shardings=shardings)

    @functools.cached_property
    def zero_losses(self) -> Callable[[], Arrays]:
        """The program that makes losses of zero by name, `[replicas]` each."""
        replicas = {
            name: device_count_along(self.mesh, self.axes[module_of(name)].replicas) for name in self.loss_names
        }
        return named_jit(
            lambda: {name: jnp.zeros(count) for name, count in replicas.items()},
            self.definition.stage_id,
            "zero_losses",
            out_shardings={name: NamedSharding(self.mesh, spec) for name, spec in self.loss_specs.items()},
        )
