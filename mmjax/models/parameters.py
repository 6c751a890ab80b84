"""Parameters as plain nested dictionaries, one tree a layer, independent of any plan.

The tree of a model is `{module: {piece: {layer: {...}}}}`; a single piece has the one layer "000".
"""

import dataclasses
import functools
import zlib
from typing import Any

import jax
from flax import nnx

from mmjax.models.pieces import Module, Piece
from sharding.trees import Tree, drop_leaf, get_leaf, set_leaf


def layer_name(layer: int) -> str:
    """Key of a layer in parameter trees and checkpoints."""
    return f"{layer:03d}"


@dataclasses.dataclass(frozen=True)
class Definition:
    """One layer of a piece taken apart: the static module, and per parameter its shape and how it is split.

    `shapes` and `splits` leave out borrowed parameters, which `borrowed_shapes` and `borrowed_splits` have by their
    path; `reads` names the batch arrays the module takes.
    """

    graph: nnx.GraphDef
    reads: tuple[str, ...]
    shapes: Tree
    splits: Tree
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
    module = nnx.eval_shape(lambda: piece.build(nnx.Rngs(0)))
    graph, state = nnx.split(module)
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), _named(nnx.to_pure_dict(state)))
    splits: Tree = {}
    for path, variable in nnx.to_flat_state(state):
        splits = set_leaf(splits, "/".join(map(str, path)), variable.get_metadata("split"))
    borrowed = [path for path, _, _ in piece.borrows]
    borrowed_shapes = {path: get_leaf(shapes, path) for path in borrowed}
    borrowed_splits = {path: get_leaf(splits, path) for path in borrowed}
    for path in borrowed:
        shapes, splits = drop_leaf(shapes, path), drop_leaf(splits, path)
    return Definition(graph, tuple(module.reads), shapes, splits, borrowed_shapes, borrowed_splits)


def _named(tree: Tree) -> Tree:
    """Lists of submodules have numbers as keys; checkpoints want names."""
    return {str(key): _named(below) if isinstance(below, dict) else below for key, below in tree.items()}


def _with_numbers(tree: Tree) -> Tree:
    """The inverse of `_named`: no attribute of a module is all digits."""
    return {
        int(key) if key.isdigit() else key: _with_numbers(below) if isinstance(below, dict) else below
        for key, below in tree.items()
    }


def layer_key(seed: int | jax.Array, module: str, piece: str, layer: int | jax.Array) -> jax.Array:
    """Key of a layer's initial values: by names and number, never by stage or device."""
    named = jax.random.fold_in(jax.random.key(seed), zlib.crc32(f"{module}/{piece}".encode()))
    return jax.random.fold_in(named, layer)


def initial_layer(seed: int, module: Module, piece: Piece, layer: int) -> Tree:
    """Initial values of one layer, without what it borrows; float32."""
    built = piece.build(nnx.Rngs(layer_key(seed, module.name, piece.name, layer)))
    values = _named(nnx.to_pure_dict(nnx.state(built)))
    for path, _, _ in piece.borrows:
        values = drop_leaf(values, path)
    return values


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
