"""Master weights by layer, and how a step's compute weights and reduced gradients come from and go to them.

Masters are float32, one tree a layer, sharded over the data axes as well as tensor (ZeRO-1, arXiv 1910.02054); so a
checkpoint needs nothing taken apart. `gather` casts and stacks them once a step; `reduce` brings gradients back.
Experts are split over some of the data axes, the expert axes, and are gathered and reduced over the rest alone.
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
from sharding.trees import Tree, get_leaf, set_leaf


@dataclasses.dataclass(frozen=True)
class LayerStackShapes:
    """One key of a stage's parameters.

    Attributes:
        layers: Names of the layers, in the order they are stacked; a single piece has one and is not stacked.
        stacked: Whether the stage runs them as a stack.
        shapes: Shapes of one layer's parameters.
        splits: Per parameter, per dimension None, "tensor" or "expert".
        tied_shapes, tied_splits: The same by path for parameters whose master lies with another stage.
    """

    layers: tuple[str, ...]
    stacked: bool
    shapes: Tree
    splits: Tree
    tied_shapes: Mapping[str, jax.ShapeDtypeStruct] = dataclasses.field(default_factory=dict)
    tied_splits: Mapping[str, tuple[str | None, ...]] = dataclasses.field(default_factory=dict)


def _spec(split: tuple[str | None, ...], axes: Axes) -> tuple[Any, ...]:
    over = {"tensor": axes.tensor, "expert": axes.expert, None: None}
    return tuple(over[of] for of in split)


def replicated_data_axes(spec: P, axes: Axes) -> tuple[str, ...]:
    """The data axes along which every rank holds the same part of a parameter: all but those that split it."""
    splitting = {name for of in spec for name in (of if isinstance(of, tuple) else (of,))}
    return tuple(name for name in axes.data if name not in splitting)


def master_spec(shape: tuple[int, ...], split: tuple[str | None, ...], mesh: Mesh, axes: Axes) -> P:
    """Split dimensions as the module says; the other data axes on the largest other dimension they divide, if any."""
    spec = list(_spec(split, axes))
    holding = replicated_data_axes(P(*spec), axes)
    instances = device_count_along(mesh, holding)
    free = [d for d, of in enumerate(spec) if of is None and shape[d] % instances == 0]
    if free and instances > 1:
        spec[max(free, key=lambda d: shape[d])] = holding
    return P(*spec)


def device_count_along(mesh: Mesh, names: tuple[str, ...]) -> int:
    """Number of devices along these axes together."""
    return math.prod(mesh.shape[name] for name in names)


class StageMasterWeights:
    """Shardings of a stage's masters, and the programs between masters, compute weights and gradients.

    Args:
        pieces: By key of the stage's parameters.
        mesh, axes: The stage's submesh.
        dtype: Precision of the compute weights.

    Attributes:
        shardings: Of every master: `{key: {layer: {...}}}`.
        specs: Of every compute weight, borrowed ones included: `{key: {...}}`.
        shapes: Shape and precision of every compute weight, borrowed ones included.
        gather: The program from masters to the compute weights that are the stage's own.
    """

    def __init__(self, pieces: dict[str, LayerStackShapes], mesh: Mesh, axes: Axes, dtype: Any) -> None:
        self.layer_stacks, self.mesh, self.axes, self.dtype = pieces, mesh, axes, dtype
        self.shardings = {
            key: dict.fromkeys(piece.layers, self._master_shardings(piece)) for key, piece in pieces.items()
        }
        own_specs = {key: self._compute_specs(piece) for key, piece in pieces.items()}
        computed = jax.tree.map(lambda spec: NamedSharding(mesh, spec), own_specs, is_leaf=is_partition_spec)
        self.gather = jax.jit(self._stack, out_shardings=computed)
        self.compute_specs, self.compute_shapes = (
            own_specs,
            {key: self._compute_shapes(piece) for key, piece in pieces.items()},
        )
        for key, piece in pieces.items():
            for path, shape in piece.tied_shapes.items():
                spec = P(*_spec(piece.tied_splits[path], axes))
                self.compute_specs[key] = set_leaf(self.compute_specs[key], path, spec)
                self.compute_shapes[key] = set_leaf(
                    self.compute_shapes[key], path, jax.ShapeDtypeStruct(shape.shape, dtype)
                )

    def _master_shardings(self, piece: LayerStackShapes) -> Tree:
        def one(shape: jax.ShapeDtypeStruct, split: tuple[str | None, ...]) -> NamedSharding:
            return NamedSharding(self.mesh, master_spec(shape.shape, split, self.mesh, self.axes))

        return jax.tree.map(one, piece.shapes, piece.splits)

    def _compute_specs(self, piece: LayerStackShapes) -> Tree:
        before = (None,) if piece.stacked else ()
        return jax.tree.map(lambda _, split: P(*before, *_spec(split, self.axes)), piece.shapes, piece.splits)

    def _compute_shapes(self, piece: LayerStackShapes) -> Tree:
        before = (len(piece.layers),) if piece.stacked else ()
        return jax.tree.map(lambda s: jax.ShapeDtypeStruct((*before, *s.shape), self.dtype), piece.shapes)

    def _stack(self, masters: Tree) -> Tree:
        """Compute weights: cast, gathered over data, equal layers stacked."""
        cast = jax.tree.map(lambda leaf: leaf.astype(self.dtype), masters)

        def join(piece: LayerStackShapes, layers: Tree) -> Tree:
            if not piece.stacked:
                return layers[piece.layers[0]]
            return jax.tree.map(lambda *of: jnp.stack(of), *(layers[name] for name in piece.layers))

        return {key: join(piece, cast[key]) for key, piece in self.layer_stacks.items()}

    def make_reduce(self, trained: frozenset[str]) -> Callable[[Tree], Tree]:
        """The program that sums gradients over instances and takes them apart by layer, sharded like the masters.

        Those of experts are summed over the instances that hold the same ones. Gradients of borrowed weights are
        summed too, but stay whole over data: they go on to their owner.
        """
        shardings = {}
        for key in sorted(trained):
            by_layer = dict(self.shardings[key])
            for path in self.layer_stacks[key].tied_shapes:
                (layer,) = by_layer
                whole = NamedSharding(self.mesh, get_leaf(self.compute_specs[key], path))
                by_layer[layer] = set_leaf(by_layer[layer], path, whole)
            shardings[key] = by_layer

        def apart(piece: LayerStackShapes, gradients: Tree) -> Tree:
            if not piece.stacked:
                return {piece.layers[0]: gradients}
            return {name: jax.tree.map(lambda leaf, at=at: leaf[at], gradients) for at, name in enumerate(piece.layers)}

        def reduce(gradients: Tree) -> Tree:
            summed = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), gradients)
            return {key: apart(self.layer_stacks[key], tree) for key, tree in summed.items()}

        return jax.jit(reduce, out_shardings=shardings)


def is_partition_spec(leaf: Any) -> bool:
    """Whether a leaf of a tree of specs is one (jax counts it as a leaf only when told)."""
    return isinstance(leaf, P)
