"""What a run's parameters start as: drawn from its seed, or read from published checkpoints."""

import pathlib
from typing import Protocol, runtime_checkable

import jax
import numpy as np

from configs.architectures import ModelConfig
from mmjax.models.model import Module, Piece
from mmjax.models.structure.parameters import init_layer_parameters, layer_name
from mmjax.weights.compatibility import compatible_matches
from mmjax.weights.published.rules import TensorMatch
from mmjax.weights.published_checkpoint import PublishedCheckpoint, open_checkpoint
from mmjax.weights.safetensors_file import contiguous_copy
from sharding.trees import Tree, get_leaf, set_leaf


@runtime_checkable
class ParameterInitializer(Protocol):
    """What makes a layer's initial values."""

    def init_layer(self, module: Module, piece: Piece, layer: int, shardings: Tree | None = None) -> Tree:
        """One layer's, without what it borrows, in float32; on the devices of `shardings`, or as NumPy arrays."""
        ...


class SeedInitializer:
    """Everything from a seed."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def init_layer(self, module: Module, piece: Piece, layer: int, shardings: Tree | None = None) -> Tree:
        """See `InitialValues`."""
        return init_layer_parameters(self._seed, module, piece, layer, shardings)


class CheckpointInitializer:
    """What published checkpoints hold from them, the rest from a seed.

    A layer is read when it is asked for, and of it what the devices of this process hold: a tensor that lies as ours
    does, or turned, by parts; one that is several of ours, or a part of one, whole. It is mapped into memory, so
    that on the host there is never more than the largest of them.

    Args:
        matches: What is read, and from where.
        otherwise: Where the rest comes from.
    """

    def __init__(
        self, matches: list[tuple[PublishedCheckpoint, tuple[TensorMatch, ...]]], otherwise: ParameterInitializer
    ) -> None:
        self._otherwise = otherwise
        self._by_layer: dict[tuple[str, str, str], list[tuple[PublishedCheckpoint, TensorMatch]]] = {}
        for checkpoint, of_one in matches:
            fresh = {of.layer for of in of_one}
            self._by_layer = {layer: held for layer, held in self._by_layer.items() if layer not in fresh}
            for of in of_one:
                self._by_layer.setdefault(of.layer, []).append((checkpoint, of))

    def init_layer(self, module: Module, piece: Piece, layer: int, shardings: Tree | None = None) -> Tree:
        """See `InitialValues`."""
        key = (module.name, piece.name, layer_name(layer))
        if key not in self._by_layer:
            return self._otherwise.init_layer(module, piece, layer, shardings)
        tree: Tree = {}
        for checkpoint, of in self._by_layer[key]:
            paths = [path.split("/", 3)[3] for path in of.parameter_paths]
            placed = [None if shardings is None else get_leaf(shardings, path) for path in paths]
            for path, array in zip(paths, read_match(checkpoint, of, placed), strict=True):
                tree = set_leaf(tree, path, array)
        return tree


def read_match(
    checkpoint: PublishedCheckpoint, of: TensorMatch, placed: list[jax.sharding.Sharding | None]
) -> list[np.ndarray | jax.Array]:
    """The parameters of a match in float32, on their devices; NumPy arrays where there is no sharding."""
    names = [checkpoint.tensor_names[name] for name in of.tensor_names]
    if len(of.tensor_names) == len(of.parameter_paths) == 1 and placed[0] is not None:
        everything = tuple(slice(0, size) for size in of.parameter_shapes[0])
        if of.layout.published_slice(everything) is not None:
            return [_by_parts(checkpoint, names[0], of, placed[0])]
    theirs = tuple(checkpoint.folder.read(name) for name in names)
    ours = of.layout.to_parameters(theirs, of.parameter_shapes)
    return [
        _float32(array) if sharding is None else _placed(array, sharding)
        for array, sharding in zip(ours, placed, strict=True)
    ]


def _by_parts(
    checkpoint: PublishedCheckpoint, name: str, of: TensorMatch, sharding: jax.sharding.Sharding
) -> jax.Array:
    """One parameter of which every device's part is read by itself."""
    (shape,) = of.parameter_shapes

    def part(index: tuple[slice, ...]) -> np.ndarray:
        bounds = tuple(slice(*each.indices(size)[:2]) for each, size in zip(index, shape, strict=True))
        theirs = checkpoint.folder.read(name, of.layout.published_slice(bounds))
        sizes = tuple(each.stop - each.start for each in bounds)
        (ours,) = of.layout.to_parameters((theirs,), (sizes,))
        return _float32(ours)

    return jax.make_array_from_callback(shape, sharding, part)


def _placed(array: np.ndarray, sharding: jax.sharding.Sharding) -> jax.Array:
    return jax.make_array_from_callback(array.shape, sharding, lambda index: _float32(array[index]))


def _float32(array: np.ndarray) -> np.ndarray:
    """A copy of its own: the file may go away."""
    return contiguous_copy(array, np.dtype(np.float32))


def parameter_initializer(
    config: ModelConfig, seed: int, weights: tuple[tuple[str, str], ...] = ()
) -> ParameterInitializer:
    """What a run starts from; checkpoints are checked here, and read later.

    Args:
        config: The model.
        seed: Of everything that no checkpoint gives.
        weights: (part, folder): a part that trains by name, such as `backbone`, or `model` for all that the folder
            has; a later one has precedence.

    Raises:
        UserError: A folder is no checkpoint.
        Misfit: One does not fit the model.
    """
    seeded = SeedInitializer(seed)
    if not weights:
        return seeded
    matches = []
    for part, folder in weights:
        checkpoint = open_checkpoint(pathlib.Path(folder))
        matches.append((checkpoint, compatible_matches(checkpoint, config, part)))
    return CheckpointInitializer(matches, seeded)
