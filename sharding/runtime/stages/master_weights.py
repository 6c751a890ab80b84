"""Master weights of a stage by layer, and the programs that make compute weights of them and reduce gradients to them.

Master weights are float32, one tree for each layer, sharded over the data axes as well as over the tensor axes (ZeRO-1,
arXiv 1910.02054), so that a checkpoint can store them as they are. `gather` casts and stacks them once a step; the
program of `make_reduce` brings gradients back to the same layout. Experts are split over some of the data axes, the
expert axes, and are gathered and reduced over the others alone. Likewise fully sharded weights: between layers' uses
they stay divided over the axes `Axes.fsdp`.

Compute weights alone are padded: a dimension that its tensor ranks do not divide evenly, a vocabulary, gets rows of
zeros behind it. Master weights, reduced gradients and optimizer state have the shape of one device on every plan, and
tensor ranks divide another dimension of theirs. The executor runs these programs in the ops `gather` and `reduce`.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from sharding.axes import Axes
from sharding.plans.resolved.stage_graph import StageId
from sharding.runtime.stages.definition import module_of
from sharding.runtime.stages.host_memory import is_on_host, load, on_host
from sharding.runtime.stages.named_programs import named_jit
from sharding.runtime.stages.weight_specs import (
    Split,
    axis_names,
    compute_spec,
    is_partition_spec,
    master_spec,
    padded_shape,
    unpadded_spec,
)
from sharding.trees import Tree, set_leaf


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerStackShapes:
    """The parameters under one key of a stage: equal layers that run as a stack, or a single piece.

    Attributes:
        layers: Names of the layers, in the order in which they are stacked; a single piece has one.
        stacked: Whether the stage runs them as a stack.
        shapes: Shapes of one layer's parameters.
        splits: The `Split` of each parameter.
        tied_shapes, tied_splits: The same, by path, for parameters whose master weights another stage holds.
    """

    layers: tuple[str, ...]
    stacked: bool
    shapes: Tree
    splits: Tree
    tied_shapes: Mapping[str, jax.ShapeDtypeStruct] = dataclasses.field(default_factory=dict)
    tied_splits: Mapping[str, Split] = dataclasses.field(default_factory=dict)


class StageMasterWeights:
    """Shardings of a stage's master weights, and the programs between master weights, compute weights and gradients.

    Args:
        layer_stacks: By key of the stage's parameters, `module/piece`.
        mesh: The stage's submesh.
        axes: By module, what its axes are for.
        dtype: Precision of the compute weights.
        stage_id: The stage.
        in_host_memory: Whether master weights lie in the memory of the devices' hosts, from which `gather` reads them.

    Attributes:
        shardings: Shardings of all master weights: `{key: {layer: {...}}}`.
        gradient_shardings: Shardings of all reduced gradients, which are divided likewise and lie on the devices.
        compute_specs: Specs of all compute weights, tied ones included: `{key: {...}}`.
        compute_shapes: Shape, padding included, and precision of all compute weights, tied ones included.
        tied_gradient_specs: By key and path, specs of the reduced gradients of tied weights, which have no padding.
        gather: The program from master weights to the compute weights that are the stage's own.
    """

    def __init__(
        self,
        layer_stacks: dict[str, LayerStackShapes],
        mesh: Mesh,
        axes: Mapping[str, Axes],
        dtype: Any,
        stage_id: StageId,
        in_host_memory: bool = False,
    ) -> None:
        self.layer_stacks, self.mesh, self.axes, self.dtype, self.stage_id = layer_stacks, mesh, axes, dtype, stage_id
        axes_of = self._axes_of = {
            key: axes[module_of(key)] if stack.stacked else axes[module_of(key)].around_stack
            for key, stack in layer_stacks.items()
        }
        self.gradient_shardings = {
            key: dict.fromkeys(stack.layers, self._master_shardings(stack, axes_of[key]))
            for key, stack in layer_stacks.items()
        }
        self.in_host_memory = in_host_memory
        self.shardings = on_host(self.gradient_shardings) if in_host_memory else self.gradient_shardings
        own_specs = {key: self._own_compute_specs(stack, axes_of[key]) for key, stack in layer_stacks.items()}
        own_shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), own_specs, is_leaf=is_partition_spec)
        self.gather = named_jit(self._stack_layers, stage_id, "gather", out_shardings=own_shardings)
        self.compute_specs = dict(own_specs)
        self.compute_shapes = {key: self._own_compute_shapes(key, stack) for key, stack in layer_stacks.items()}
        self.tied_gradient_specs: dict[str, dict[str, P]] = {key: {} for key in layer_stacks}
        for key, stack in layer_stacks.items():
            for path, shape in stack.tied_shapes.items():
                placement = shape.shape, stack.tied_splits[path], mesh, axes_of[key]
                struct = jax.ShapeDtypeStruct(padded_shape(*placement), dtype)
                self.compute_specs[key] = set_leaf(self.compute_specs[key], path, compute_spec(*placement))
                self.compute_shapes[key] = set_leaf(self.compute_shapes[key], path, struct)
                self.tied_gradient_specs[key][path] = unpadded_spec(*placement)

    def _master_shardings(self, stack: LayerStackShapes, axes: Axes) -> Tree:
        def sharding(shape: jax.ShapeDtypeStruct, split: Split) -> NamedSharding:
            return NamedSharding(self.mesh, master_spec(shape.shape, split, self.mesh, axes))

        return jax.tree.map(sharding, stack.shapes, stack.splits)

    def abstract_weights(self) -> Tree:
        """Shapes and shardings of all master weights: `{key: {layer: {...}}}`."""
        return self._abstract(self.shardings)

    def abstract_gradients(self) -> Tree:
        """Shapes and shardings of all reduced gradients: `{key: {layer: {...}}}`."""
        return self._abstract(self.gradient_shardings)

    def _abstract(self, tree: Tree) -> Tree:
        def abstract(shape: jax.ShapeDtypeStruct, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding)

        return {
            key: {
                layer: jax.tree.map(abstract, self.layer_stacks[key].shapes, shardings)
                for layer, shardings in by_layer.items()
            }
            for key, by_layer in tree.items()
        }

    def _own_compute_specs(self, stack: LayerStackShapes, axes: Axes) -> Tree:
        leading = (axes.pipeline or None,) if stack.stacked else ()

        def spec(shape: jax.ShapeDtypeStruct, split: Split) -> P:
            return P(*leading, *compute_spec(shape.shape, split, self.mesh, axes))

        return jax.tree.map(spec, stack.shapes, stack.splits)

    def _own_compute_shapes(self, key: str, stack: LayerStackShapes) -> Tree:
        leading = (len(stack.layers),) if stack.stacked else ()

        def struct(shape: jax.ShapeDtypeStruct, split: Split) -> jax.ShapeDtypeStruct:
            padded = padded_shape(shape.shape, split, self.mesh, self._axes_of[key])
            return jax.ShapeDtypeStruct((*leading, *padded), self.dtype)

        return jax.tree.map(struct, stack.shapes, stack.splits)

    def _stack_layers(self, masters: Tree) -> Tree:
        """Compute weights: cast, padded, gathered over the data axes, equal layers stacked."""
        cast = self._cast(masters)

        def stack_one(key: str, stack: LayerStackShapes) -> Tree:
            pad = functools.partial(self._pad, self._axes_of[key])
            layers = [jax.tree.map(pad, cast[key][name], stack.splits) for name in stack.layers]
            if not stack.stacked:
                return layers[0]
            stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)
            return self._exchange_layers(key, stacked, to_pipeline=True)

        return {key: stack_one(key, stack) for key, stack in self.layer_stacks.items()}

    def _cast(self, masters: Tree) -> Tree:
        """Master weights in compute precision; those in the hosts' memory are loaded one after another."""
        if not is_on_host(self.shardings):
            return jax.tree.map(lambda leaf: leaf.astype(self.dtype), masters)
        before: list[jax.Array] = []

        def cast(leaf: jax.Array, sharding: NamedSharding) -> jax.Array:
            before[:] = [load(leaf, sharding, after=tuple(before)).astype(self.dtype)]
            return before[0]

        return jax.tree.map(cast, masters, self.shardings)

    def _exchange_layers(self, key: str, stacked: Tree, *, to_pipeline: bool) -> Tree:
        """A stack `[l, ...]` between master weights' layout, whose layers all pipeline ranks divide, and its own.

        An all-to-all among pipeline ranks, which XLA sees if nothing else changes: the other axes stay.
        """
        pipeline = self._axes_of[key].pipeline
        if not pipeline:
            return stacked

        def exchange(sharding: NamedSharding, leaf: jax.Array) -> jax.Array:
            on_ranks = (tuple(name for name in axis_names(entry) if name not in pipeline) for entry in sharding.spec)
            specs = [P(None, *sharding.spec), P(pipeline, *on_ranks)]
            for spec in specs if to_pipeline else reversed(specs):
                leaf = jax.lax.with_sharding_constraint(leaf, NamedSharding(self.mesh, spec))
            return leaf

        return jax.tree.map(exchange, next(iter(self.shardings[key].values())), stacked)

    def _pad(self, axes: Axes, leaf: jax.Array, split: Split) -> jax.Array:
        """Appends rows of zeros to a dimension of a parameter that its ranks do not divide evenly."""
        padded = padded_shape(leaf.shape, split, self.mesh, axes)
        if padded == leaf.shape:
            return leaf
        leaf = self._as_unpadded(leaf, leaf.shape, split, axes)
        return jnp.pad(leaf, [(0, after - before) for before, after in zip(leaf.shape, padded, strict=True)])

    def _without_padding(self, key: str, gradients: Tree) -> Tree:
        """Returns the gradients of a layer's own or borrowed parameters, without the rows of `_pad`."""
        stack, axes = self.layer_stacks[key], self._axes_of[key]
        shapes, splits = stack.shapes, stack.splits
        for path in stack.tied_shapes:
            shapes = set_leaf(shapes, path, stack.tied_shapes[path])
            splits = set_leaf(splits, path, stack.tied_splits[path])

        def cut(leaf: jax.Array, shape: jax.ShapeDtypeStruct, split: Split) -> jax.Array:
            if leaf.shape == shape.shape:
                return leaf
            return self._as_unpadded(leaf, shape.shape, split, axes)[tuple(slice(size) for size in shape.shape)]

        return jax.tree.map(cut, gradients, shapes, splits)

    def _as_unpadded(self, leaf: jax.Array, shape: tuple[int, ...], split: Split, axes: Axes) -> jax.Array:
        """Divides an array by ranks as if it had no padding: from or to compute weights, that is one all-to-all.

        Without this step between them and master weights, XLA gathers the whole array on every device.
        """
        sharding = NamedSharding(self.mesh, unpadded_spec(shape, split, self.mesh, axes))
        return jax.lax.with_sharding_constraint(leaf, sharding)

    def make_reduce(self, trained_keys: frozenset[str]) -> Callable[[Tree], Tree]:
        """The program that sums gradients over replicas and unstacks them by layer, sharded like the master weights.

        Gradients of experts are summed over the replicas that hold the same experts. Gradients of tied weights are
        summed too, but are not divided further than the compute weights: they go on to the stage that owns the weight.
        Gradients of padding, which are zeros, are left out.
        """
        shardings = {}
        for key in sorted(trained_keys):
            by_layer = dict(self.gradient_shardings[key])
            for path, spec in self.tied_gradient_specs[key].items():
                (layer,) = by_layer
                by_layer[layer] = set_leaf(by_layer[layer], path, NamedSharding(self.mesh, spec))
            shardings[key] = by_layer

        def unstack(stack: LayerStackShapes, gradients: Tree) -> Tree:
            if not stack.stacked:
                return {stack.layers[0]: gradients}
            return {
                name: jax.tree.map(lambda leaf, index=index: leaf[index], gradients)
                for index, name in enumerate(stack.layers)
            }

        def reduce(gradients: Tree) -> Tree:
            summed = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), gradients)  # [replicas, ...] -> [...]
            by_layer = {
                key: unstack(self.layer_stacks[key], self._exchange_layers(key, tree, to_pipeline=False))
                for key, tree in summed.items()
            }
            return {
                key: {layer: self._without_padding(key, tree) for layer, tree in layers.items()}
                for key, layers in by_layer.items()
            }

        return named_jit(reduce, self.stage_id, "reduce", out_shardings=shardings)
