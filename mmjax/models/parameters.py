"""Parameters as plain nested dictionaries, one tree a layer, independent of any plan.

The tree of a model is `{module: {piece: {layer: {...}}}}`; a single piece has the one layer "000".
"""

import dataclasses
import functools
import zlib
from typing import Any

import jax
import numpy as np
from flax import nnx

from mmjax.models.module import Module, Piece
from sharding.trees import Tree, drop_leaf, get_leaf, keep_leaves, set_leaf


def layer_name(layer: int) -> str:
    """Key of a layer in parameter trees and checkpoints."""
    return f"{layer:03d}"


@dataclasses.dataclass(frozen=True)
class Start:
    """Initial values of a parameter: normal, or all `mean` where the deviation is 0."""

    mean: float
    deviation: float


@dataclasses.dataclass(frozen=True)
class Definition:
    """One layer of a piece taken apart: the static module, and per parameter its shape and how it is split.

    `shapes`, `splits` and `starts` leave out borrowed parameters, which `borrowed_shapes` and `borrowed_splits` have
    by their path; `reads` names the batch arrays the module takes.
    """

    graph: nnx.GraphDef
    reads: tuple[str, ...]
    shapes: Tree
    splits: Tree
    starts: Tree
    borrowed_shapes: dict[str, jax.ShapeDtypeStruct]
    borrowed_splits: dict[str, tuple]

    def call(self, parameters: Tree, *arguments: Any) -> Any:
        """Runs the module on (local parts of) its parameters."""
        return self.module(parameters)(*arguments)

    def module(self, parameters: Tree) -> nnx.Module:
        """The module with these parameters (local parts of them inside `jax.shard_map`)."""
        return nnx.merge(self.graph, _with_numbers(parameters))


@functools.cache
def define(piece: Piece) -> Definition:
    """Traces a piece without computing anything."""
    module = nnx.eval_shape(piece.build)
    graph, state = nnx.split(module)
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), _named(nnx.to_pure_dict(state)))
    splits: Tree = {}
    starts: Tree = {}
    for path, variable in nnx.to_flat_state(state):
        name = "/".join(map(str, path))
        splits = set_leaf(splits, name, variable.get_metadata("split"))
        starts = set_leaf(starts, name, Start(variable.get_metadata("mean"), variable.get_metadata("deviation")))
    if piece.holds:
        shapes, splits, starts = (keep_leaves(tree, piece.holds) for tree in (shapes, splits, starts))
    borrowed = [path for path, _, _ in piece.borrows]
    borrowed_shapes = {path: get_leaf(shapes, path) for path in borrowed}
    borrowed_splits = {path: get_leaf(splits, path) for path in borrowed}
    for path in borrowed:
        shapes, splits, starts = (drop_leaf(tree, path) for tree in (shapes, splits, starts))
    return Definition(graph, tuple(module.reads), shapes, splits, starts, borrowed_shapes, borrowed_splits)


def _named(tree: dict[Any, Any]) -> Tree:
    """Lists of submodules have numbers as keys; checkpoints want names."""
    return {str(key): _named(below) if isinstance(below, dict) else below for key, below in tree.items()}


def _with_numbers(tree: Tree) -> dict[Any, Any]:
    """The inverse of `_named`: no attribute of a module is all digits."""
    return {
        int(key) if key.isdigit() else key: _with_numbers(below) if isinstance(below, dict) else below
        for key, below in tree.items()
    }


def initial_layer(seed: int, module: Module, piece: Piece, layer: int, shardings: Tree | None = None) -> Tree:
    """Initial values of one layer, without what it borrows; float32.

    Every value is keyed by the seed and the parameter's own path, so no plan changes it. They are drawn on the host:
    on devices every shape would be one more program to compile before the first step.

    Args:
        seed, module, piece, layer: Which.
        shardings: Where each parameter is to lie; None for NumPy arrays.
    """
    name = f"{module.name}/{piece.name}/{layer_name(layer)}"

    def one(path: Any, shape: jax.ShapeDtypeStruct, start: Start) -> np.ndarray:
        key = zlib.crc32(f"{name}{jax.tree_util.keystr(path)}".encode())
        drawn = np.random.Generator(np.random.Philox(key=[seed, key])).standard_normal(shape.shape, np.float32)
        return np.float32(start.mean) + np.float32(start.deviation) * drawn

    definition = define(piece)
    values = jax.tree_util.tree_map_with_path(one, definition.shapes, definition.starts)
    return values if shardings is None else jax.tree.map(put, values, shardings)


def put(array: np.ndarray, sharding: jax.sharding.Sharding) -> jax.Array:
    """A host array that every process has, on the devices of the sharding that are this process's."""
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def initial_module(seed: int, module: Module) -> Tree:
    """Initial values of a module: `{piece: {layer: {...}}}`."""
    return {
        piece.name: {layer_name(layer): initial_layer(seed, module, piece, layer) for layer in range(piece.layers or 1)}
        for piece in module.pieces
    }


def abstract_module(module: Module) -> Tree:
    """Shapes of a module's parameters in the form of `initial_module`."""
    return {
        piece.name: {layer_name(layer): define(piece).shapes for layer in range(piece.layers or 1)}
        for piece in module.pieces
    }
