"""What a run's parameters start as: drawn from its seed, or read from published checkpoints."""

import pathlib
from typing import Protocol, runtime_checkable

import jax
import numpy as np

from configs.architectures import ModelConfig
from mmjax.models.parameters import initial_layer, layer_name
from mmjax.models.pieces import Module, Piece
from mmjax.models.published.rules import Match
from mmjax.weights.checking import checked_matches
from mmjax.weights.modules import Checkpoint, open_checkpoint
from mmjax.weights.tensor_file import dense
from sharding.trees import Tree, get_leaf, set_leaf


@runtime_checkable
class InitialValues(Protocol):
    """What makes a layer's initial values."""

    def layer(self, module: Module, piece: Piece, layer: int, shardings: Tree | None = None) -> Tree:
        """One layer's, without what it borrows, in float32; on the devices of `shardings`, or as NumPy arrays."""
        ...


class FromSeed:
    """Everything from a seed."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def layer(self, module: Module, piece: Piece, layer: int, shardings: Tree | None = None) -> Tree:
        """See `InitialValues`."""
        return initial_layer(self._seed, module, piece, layer, shardings)


class FromCheckpoints:
    """What published checkpoints hold from them, the rest from a seed.

    A layer is read when it is asked for, and of it what the devices of this process hold: a tensor that lies as ours
    does, or turned, by parts; one that is several of ours, or a part of one, whole. It is mapped into memory, so
    that on the host there is never more than the largest of them.

    Args:
        matches: What is read, and from where.
        otherwise: Where the rest comes from.
    """

    def __init__(self, matches: list[tuple[Checkpoint, tuple[Match, ...]]], otherwise: InitialValues) -> None:
        self._otherwise = otherwise
        self._by_layer: dict[tuple[str, str, str], list[tuple[Checkpoint, Match]]] = {}
        for checkpoint, of_one in matches:
            fresh = {of.layer for of in of_one}
            self._by_layer = {layer: held for layer, held in self._by_layer.items() if layer not in fresh}
            for of in of_one:
                self._by_layer.setdefault(of.layer, []).append((checkpoint, of))

    def layer(self, module: Module, piece: Piece, layer: int, shardings: Tree | None = None) -> Tree:
        """See `InitialValues`."""
        key = (module.name, piece.name, layer_name(layer))
        if key not in self._by_layer:
            return self._otherwise.layer(module, piece, layer, shardings)
        tree: Tree = {}
        for checkpoint, of in self._by_layer[key]:
            paths = [path.split("/", 3)[3] for path in of.paths]
            placed = [None if shardings is None else get_leaf(shardings, path) for path in paths]
            for path, array in zip(paths, read_match(checkpoint, of, placed), strict=True):
                tree = set_leaf(tree, path, array)
        return tree


def read_match(
    checkpoint: Checkpoint, of: Match, placed: list[jax.sharding.Sharding | None]
) -> list[np.ndarray | jax.Array]:
    """The parameters of a match in float32, on their devices; NumPy arrays where there is no sharding."""
    names = [checkpoint.names[name] for name in of.names]
    if len(of.names) == len(of.paths) == 1 and placed[0] is not None:
        everything = tuple(slice(0, size) for size in of.shapes[0])
        if of.layout.their_part(everything) is not None:
            return [_by_parts(checkpoint, names[0], of, placed[0])]
    theirs = tuple(checkpoint.folder.read(name) for name in names)
    ours = of.layout.to_ours(theirs, of.shapes)
    return [
        _float32(array) if sharding is None else _placed(array, sharding)
        for array, sharding in zip(ours, placed, strict=True)
    ]


def _by_parts(checkpoint: Checkpoint, name: str, of: Match, sharding: jax.sharding.Sharding) -> jax.Array:
    """One parameter of which every device's part is read by itself."""
    (shape,) = of.shapes

    def part(index: tuple[slice, ...]) -> np.ndarray:
        bounds = tuple(slice(*each.indices(size)[:2]) for each, size in zip(index, shape, strict=True))
        theirs = checkpoint.folder.read(name, of.layout.their_part(bounds))
        sizes = tuple(each.stop - each.start for each in bounds)
        (ours,) = of.layout.to_ours((theirs,), (sizes,))
        return _float32(ours)

    return jax.make_array_from_callback(shape, sharding, part)


def _placed(array: np.ndarray, sharding: jax.sharding.Sharding) -> jax.Array:
    return jax.make_array_from_callback(array.shape, sharding, lambda index: _float32(array[index]))


def _float32(array: np.ndarray) -> np.ndarray:
    """A copy of its own: the file may go away."""
    return dense(array, np.dtype(np.float32))


def initial_values(config: ModelConfig, seed: int, weights: tuple[tuple[str, str], ...] = ()) -> InitialValues:
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
    seeded = FromSeed(seed)
    if not weights:
        return seeded
    matches = []
    for part, folder in weights:
        checkpoint = open_checkpoint(pathlib.Path(folder))
        matches.append((checkpoint, checked_matches(checkpoint, config, part)))
    return FromCheckpoints(matches, seeded)
