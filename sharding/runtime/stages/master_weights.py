"""Master weights of a stage by layer, and the programs that make compute weights of them and reduce gradients to them.

Master weights are float32, one tree for each layer, sharded over the data axes as well as over the tensor axes (ZeRO-1,
arXiv 1910.02054), so that a checkpoint can store them as they are. `gather` casts and stacks them once a step; the
program of `make_reduce` brings gradients back to the same layout. Experts are split over some of the data axes, the
expert axes, and are gathered and reduced over the others alone. Likewise fully sharded weights: between layers' uses
they stay divided over the axes `Axes.fsdp`.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from sharding.axes import Axes
from sharding.plans.stage_graph import StageId
from sharding.runtime.stages.definition import module_of
from sharding.runtime.stages.named_programs import named_jit
from sharding.trees import Tree, get_leaf, set_leaf

Split = tuple[str | None, ...]
"""For every dimension of a parameter what divides it: "tensor", "expert" or None."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerStackShapes:
    """The parameters under one key of a stage: equal layers that run as a stack, or a single piece.

    Attributes:
        layers: Names of the layers, in the order in which they are stacked; a single piece has one.
        stacked: Whether the stage runs them as a stack.
        shapes: Shapes of one layer's parameters.
        splits: The `Split` of each of them.
        tied_shapes, tied_splits: The same, by path, for parameters whose master weights another stage holds.
    """

    layers: tuple[str, ...]
    stacked: bool
    shapes: Tree
    splits: Tree
    tied_shapes: Mapping[str, jax.ShapeDtypeStruct] = dataclasses.field(default_factory=dict)
    tied_splits: Mapping[str, Split] = dataclasses.field(default_factory=dict)


def _mesh_axes(split: Split, axes: Axes) -> tuple[Any, ...]:
    axes_by_purpose = {"tensor": axes.tensor, "expert": axes.expert, None: None}
    return tuple(axes_by_purpose[purpose] for purpose in split)


def _names(entry: Any) -> tuple[str, ...]:
    """The mesh axes of an entry of a spec."""
    return entry if isinstance(entry, tuple) else (entry,) if entry else ()


def replicated_data_axes(spec: P, axes: Axes) -> tuple[str, ...]:
    """The axes of `Axes.replicas` along which every rank holds the same part of a parameter: those not in its spec."""
    used = {name for entry in spec for name in _names(entry)}
    return tuple(name for name in axes.replicas if name not in used)


def compute_spec(shape: tuple[int, ...], split: Split, mesh: Mesh, axes: Axes) -> P:
    """The spec of a parameter's compute weights outside of the layers that use them.

    Dimensions that the module splits stay split; of the others, the axes of `Axes.fsdp` divide the largest that they
    divide evenly, if there is one.
    """
    return P(*_compute_entries(shape, split, mesh, axes))


def master_spec(shape: tuple[int, ...], split: Split, mesh: Mesh, axes: Axes) -> P:
    """The spec of a parameter's master weights.

    They are divided as the compute weights are. The remaining data axes divide the same dimension further, or the
    largest that nothing divides, where they divide it evenly. So do pipeline axes, which divide the layers of a stack:
    each layer's master weights are on all pipeline ranks.
    """
    spec = _compute_entries(shape, split, mesh, axes)
    data_axes = replicated_data_axes(P(*spec), axes)
    further = [names for names in ((*data_axes, *axes.pipeline), data_axes, axes.pipeline) if names]
    sharded = fully_sharded_dimension(P(*spec), axes)
    if sharded is not None:
        dim, own_axes = sharded
        for names in further:
            if shape[dim] % device_count_along(mesh, (*own_axes, *names)) == 0:
                spec[dim] = (*own_axes, *names)
                return P(*spec)
    divided = (_with_largest_divided(shape, list(spec), mesh, names) for names in further)
    return P(*next((each for each in divided if each != spec), spec))


def _compute_entries(shape: tuple[int, ...], split: Split, mesh: Mesh, axes: Axes) -> list[Any]:
    """The entries of `compute_spec`; one that the module splits over no axis is an empty tuple, not None."""
    spec = list(_mesh_axes(split, axes))
    sharding_axes = tuple(name for name in axes.fsdp if name in replicated_data_axes(P(*spec), axes))
    return _with_largest_divided(shape, spec, mesh, sharding_axes)


def _with_largest_divided(shape: tuple[int, ...], spec: list[Any], mesh: Mesh, axes: tuple[str, ...]) -> list[Any]:
    """The entries with the largest dimension that nothing divides divided over `axes`, if one can be."""
    ranks = device_count_along(mesh, axes)
    divisible = [dim for dim, entry in enumerate(spec) if entry is None and shape[dim] % ranks == 0]
    if divisible and ranks > 1:
        spec[max(divisible, key=lambda dim: shape[dim])] = axes
    return spec


def fully_sharded_dimension(spec: P, axes: Axes) -> tuple[int, tuple[str, ...]] | None:
    """The dimension of a parameter that its compute spec divides over axes of `Axes.fsdp`, and these; None for none.

    A dimension of experts, which the expert axes alone divide, is not meant.
    """
    for dim, entry in enumerate(spec):
        names = entry if isinstance(entry, tuple) else (entry,)
        if set(names) & (set(axes.fsdp) - set(axes.expert)):
            return dim, names
    return None


def device_count_along(mesh: Mesh, names: tuple[str, ...]) -> int:
    """Number of devices along some mesh axes together."""
    return math.prod(mesh.shape[name] for name in names)


class StageMasterWeights:
    """Shardings of a stage's master weights, and the programs between master weights, compute weights and gradients.

    Args:
        layer_stacks: By key of the stage's parameters, `module/piece`.
        mesh: The stage's submesh.
        axes: By module, what its axes are for.
        dtype: Precision of the compute weights.
        stage_id: The stage.

    Attributes:
        shardings: Of all master weights: `{key: {layer: {...}}}`.
        compute_specs: Specs of all compute weights, tied ones included: `{key: {...}}`.
        compute_shapes: Shape and precision of all compute weights, tied ones included.
        gather: The program from master weights to the compute weights that are the stage's own.
    """

    def __init__(
        self,
        layer_stacks: dict[str, LayerStackShapes],
        mesh: Mesh,
        axes: Mapping[str, Axes],
        dtype: Any,
        stage_id: StageId,
    ) -> None:
        self.layer_stacks, self.mesh, self.axes, self.dtype, self.stage_id = layer_stacks, mesh, axes, dtype, stage_id
        axes_of = self._axes_of = {
            key: axes[module_of(key)] if stack.stacked else axes[module_of(key)].around_stack
            for key, stack in layer_stacks.items()
        }
        self.shardings = {
            key: dict.fromkeys(stack.layers, self._master_shardings(stack, axes_of[key]))
            for key, stack in layer_stacks.items()
        }
        own_specs = {key: self._own_compute_specs(stack, axes_of[key]) for key, stack in layer_stacks.items()}
        own_shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), own_specs, is_leaf=is_partition_spec)
        self.gather = named_jit(self._stack_layers, stage_id, "gather", out_shardings=own_shardings)
        self.compute_specs = dict(own_specs)
        self.compute_shapes = {key: self._own_compute_shapes(stack) for key, stack in layer_stacks.items()}
        for key, stack in layer_stacks.items():
            for path, shape in stack.tied_shapes.items():
                spec = compute_spec(shape.shape, stack.tied_splits[path], mesh, axes_of[key])
                struct = jax.ShapeDtypeStruct(shape.shape, dtype)
                self.compute_specs[key] = set_leaf(self.compute_specs[key], path, spec)
                self.compute_shapes[key] = set_leaf(self.compute_shapes[key], path, struct)

    def _master_shardings(self, stack: LayerStackShapes, axes: Axes) -> Tree:
        def sharding(shape: jax.ShapeDtypeStruct, split: Split) -> NamedSharding:
            return NamedSharding(self.mesh, master_spec(shape.shape, split, self.mesh, axes))

        return jax.tree.map(sharding, stack.shapes, stack.splits)

    def abstract_weights(self) -> Tree:
        """Shapes and shardings of all master weights, `{key: {layer: {...}}}`; reduced gradients have the same."""

        def abstract(shape: jax.ShapeDtypeStruct, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding)

        return {
            key: {
                layer: jax.tree.map(abstract, self.layer_stacks[key].shapes, shardings)
                for layer, shardings in by_layer.items()
            }
            for key, by_layer in self.shardings.items()
        }

    def _own_compute_specs(self, stack: LayerStackShapes, axes: Axes) -> Tree:
        leading = (axes.pipeline or None,) if stack.stacked else ()

        def spec(shape: jax.ShapeDtypeStruct, split: Split) -> P:
            return P(*leading, *compute_spec(shape.shape, split, self.mesh, axes))

        return jax.tree.map(spec, stack.shapes, stack.splits)

    def _own_compute_shapes(self, stack: LayerStackShapes) -> Tree:
        leading = (len(stack.layers),) if stack.stacked else ()
        return jax.tree.map(lambda shape: jax.ShapeDtypeStruct((*leading, *shape.shape), self.dtype), stack.shapes)

    def _stack_layers(self, masters: Tree) -> Tree:
        """Compute weights: cast, gathered over the data axes, equal layers stacked."""
        cast = jax.tree.map(lambda leaf: leaf.astype(self.dtype), masters)

        def stack_one(key: str, stack: LayerStackShapes) -> Tree:
            if not stack.stacked:
                return cast[key][stack.layers[0]]
            stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(cast[key][name] for name in stack.layers))
            return self._exchange_layers(key, stacked, to_pipeline=True)

        return {key: stack_one(key, stack) for key, stack in self.layer_stacks.items()}

    def _exchange_layers(self, key: str, stacked: Tree, *, to_pipeline: bool) -> Tree:
        """A stack `[l, ...]` between master weights' layout, whose layers all pipeline ranks divide, and its own.

        An all-to-all among pipeline ranks, which XLA sees if nothing else changes: the other axes stay.
        """
        pipeline = self._axes_of[key].pipeline
        if not pipeline:
            return stacked

        def exchange(sharding: NamedSharding, leaf: jax.Array) -> jax.Array:
            on_ranks = (tuple(name for name in _names(entry) if name not in pipeline) for entry in sharding.spec)
            specs = [P(None, *sharding.spec), P(pipeline, *on_ranks)]
            for spec in specs if to_pipeline else reversed(specs):
                leaf = jax.lax.with_sharding_constraint(leaf, NamedSharding(self.mesh, spec))
            return leaf

        return jax.tree.map(exchange, next(iter(self.shardings[key].values())), stacked)

    def make_reduce(self, trained_keys: frozenset[str]) -> Callable[[Tree], Tree]:
        """The program that sums gradients over replicas and unstacks them by layer, sharded like the master weights.

        Gradients of experts are summed over the replicas that hold the same experts. Gradients of tied weights are
        summed too, but keep the sharding of the compute weights: they go on to the stage that owns the weight.
        """
        shardings = {}
        for key in sorted(trained_keys):
            by_layer = dict(self.shardings[key])
            for path in self.layer_stacks[key].tied_shapes:
                (layer,) = by_layer
                as_computed = NamedSharding(self.mesh, get_leaf(self.compute_specs[key], path))
                by_layer[layer] = set_leaf(by_layer[layer], path, as_computed)
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
            return {
                key: unstack(self.layer_stacks[key], self._exchange_layers(key, tree, to_pipeline=False))
                for key, tree in summed.items()
            }

        return named_jit(reduce, self.stage_id, "reduce", out_shardings=shardings)


def is_partition_spec(leaf: Any) -> bool:
    """Whether a node of a tree is a PartitionSpec; for `is_leaf`."""
    return isinstance(leaf, P)
