"""Parameters as nested dictionaries of arrays, one tree per layer, independent of any plan.

The tree of a model is `{module: {piece: {layer: {...}}}}`; a piece that is a single layer has the one layer "000".
Initial values, the engine's stages, checkpoints, published weights and generation all use these trees.
"""

import dataclasses
import functools
import zlib
from typing import Any

import jax
import numpy as np
from flax import nnx

from configs.common.errors import UserError
from mmjax.models.structure.module import Module, Piece
from sharding.trees import Tree, drop_leaf, get_leaf, keep_leaves, set_leaf


def layer_name(layer: int) -> str:
    """Key of a layer in parameter trees and checkpoints."""
    return f"{layer:03d}"


@dataclasses.dataclass(frozen=True)
class InitialDistribution:
    """Normal distribution of a parameter's initial values; with `stddev` 0 every value is `mean`."""

    mean: float
    stddev: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class PieceDefinition:
    """One layer of a piece: its `nnx.GraphDef`, and the shape, split and initialisation of each parameter.

    Attributes:
        graphdef: The Flax module without its parameters.
        batch_keys: Names of the batch arrays that the module reads.
        shapes: Shape and type of every parameter that the piece owns.
        splits: Axes that divide each dimension of each parameter: None, "tensor" or "expert".
        initial_distributions: How every parameter is initialised.
        tied_shapes: Shapes of the parameters that another piece owns, by path.
        tied_splits: Splits of the parameters that another piece owns, by path.
    """

    graphdef: nnx.GraphDef
    batch_keys: tuple[str, ...]
    shapes: Tree
    splits: Tree
    initial_distributions: Tree
    tied_shapes: dict[str, jax.ShapeDtypeStruct]
    tied_splits: dict[str, tuple]

    def apply(self, parameters: Tree, *arguments: Any) -> Any:
        """Calls the module with these parameters (inside `jax.shard_map`: with this device's shards of them)."""
        return self.bind(parameters)(*arguments)

    def bind(self, parameters: Tree) -> Any:
        """The Flax module with these parameters (inside `jax.shard_map`: with this device's shards of them)."""
        return nnx.merge(self.graphdef, _keys_to_indices(parameters))


@functools.cache
def piece_definition(piece: Piece) -> PieceDefinition:
    """Traces a piece's Flax module abstractly; no array is created."""
    module = nnx.eval_shape(piece.build)
    graphdef, state = nnx.split(module)
    shapes = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), _indices_to_keys(nnx.to_pure_dict(state))
    )
    splits: Tree = {}
    distributions: Tree = {}
    for path, variable in nnx.to_flat_state(state):
        name = "/".join(map(str, path))
        distribution = InitialDistribution(variable.get_metadata("mean"), variable.get_metadata("stddev"))
        splits = set_leaf(splits, name, variable.get_metadata("split"))
        distributions = set_leaf(distributions, name, distribution)
    trees = [shapes, splits, distributions]
    if piece.parameter_filter:
        trees = [keep_leaves(tree, piece.parameter_filter) for tree in trees]
    tied_paths = [path for path, _, _ in piece.tied_parameters]
    tied_shapes, tied_splits = ({path: get_leaf(tree, path) for path in tied_paths} for tree in trees[:2])
    for path in tied_paths:
        trees = [drop_leaf(tree, path) for tree in trees]
    shapes, splits, distributions = trees
    return PieceDefinition(
        graphdef=graphdef,
        batch_keys=tuple(module.batch_keys),
        shapes=shapes,
        splits=splits,
        initial_distributions=distributions,
        tied_shapes=tied_shapes,
        tied_splits=tied_splits,
    )


def _indices_to_keys(tree: dict[Any, Any]) -> Tree:
    """Turns the integer keys that Flax gives to lists of submodules into strings, as checkpoints need them."""
    return {str(key): _indices_to_keys(child) if isinstance(child, dict) else child for key, child in tree.items()}


def _keys_to_indices(tree: Tree) -> dict[Any, Any]:
    """The inverse of `_indices_to_keys`; no attribute of a module has a name of digits only."""
    return {
        int(key) if key.isdigit() else key: _keys_to_indices(child) if isinstance(child, dict) else child
        for key, child in tree.items()
    }


def init_layer_parameters(seed: int, module: Module, piece: Piece, layer: int, shardings: Tree | None = None) -> Tree:
    """Initial values in float32 of the parameters that a piece owns in one layer.

    A value is a function of the seed and of the parameter's own path, so that no plan changes it. Values are drawn on
    the host: on devices, every shape would be one more program to compile before the first step.

    Args:
        seed: Seed of the run.
        module: The module.
        piece: The piece of the module.
        layer: Number of the layer in the piece.
        shardings: Sharding of each parameter; None for NumPy arrays.
    """
    name = f"{module.name}/{piece.name}/{layer_name(layer)}"

    def init_parameter(path: Any, shape: jax.ShapeDtypeStruct, distribution: InitialDistribution) -> np.ndarray:
        key = zlib.crc32(f"{name}{jax.tree_util.keystr(path)}".encode())
        noise = np.random.Generator(np.random.Philox(key=[seed, key])).standard_normal(shape.shape, np.float32)
        return np.float32(distribution.mean) + np.float32(distribution.stddev) * noise

    definition = piece_definition(piece)
    values = jax.tree_util.tree_map_with_path(init_parameter, definition.shapes, definition.initial_distributions)
    return values if shardings is None else jax.tree.map(place_host_array, values, shardings)


def place_host_array(array: np.ndarray, sharding: jax.sharding.Sharding) -> jax.Array:
    """Places an array that every process holds whole; each process fills the shards of its own devices."""
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def on_first_device(parameters: Tree) -> Tree:
    """Copies whole parameters to this process's first device.

    Raises:
        UserError: Other processes hold some of them.
    """
    if not all(leaf.is_fully_addressable for leaf in jax.tree.leaves(parameters)):
        raise UserError("other processes hold some of the parameters; save a checkpoint and load its workdir")
    return jax.device_put(parameters, jax.local_devices()[0])


def init_module_parameters(seed: int, module: Module) -> Tree:
    """Initial values of a module, `{piece: {layer: {...}}}`, as NumPy arrays."""
    return {
        piece.name: {
            layer_name(layer): init_layer_parameters(seed, module, piece, layer) for layer in range(piece.layers or 1)
        }
        for piece in module.pieces
    }


def abstract_module_parameters(module: Module) -> Tree:
    """Shapes and types of a module's parameters, in the form of `init_module_parameters`."""
    return {
        piece.name: {layer_name(layer): piece_definition(piece).shapes for layer in range(piece.layers or 1)}
        for piece in module.pieces
    }
