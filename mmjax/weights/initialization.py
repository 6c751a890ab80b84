"""Initial values of a run's parameters: drawn from its seed, or read from published checkpoints.

`Engine.initial_state` asks an initializer for one layer at a time.
"""

import functools
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np

from configs.architectures import ModelConfig
from configs.common.errors import UserError
from mmjax.models.structure.module import Module, Piece
from mmjax.models.structure.parameters import init_layer_parameters, layer_name, piece_definition
from mmjax.weights.compatibility import compatible_matches
from mmjax.weights.published.rules import TensorMatch
from mmjax.weights.published.tensor_layouts import Shape
from mmjax.weights.published_checkpoint import WHOLE_MODEL, PublishedCheckpoint, module_of_part, open_checkpoint
from mmjax.weights.safetensors_file import contiguous_copy
from sharding.trees import Tree, get_leaf, set_leaf

_SHOWN = 3  # names of tensors in a message
ROWS_OF_MEAN = 4096
"""Number of rows of a table that are read at once for their mean."""


@runtime_checkable
class ParameterInitializer(Protocol):
    """Makes the initial values of parameters, one layer at a time."""

    def init_layer(self, module: Module, piece: Piece, layer: int, shardings: Tree | None = None) -> Tree:
        """Makes the initial values, in float32, of the parameters that a piece owns in one layer.

        Args:
            module: The module.
            piece: The piece of the module.
            layer: Number of the layer in the piece.
            shardings: Sharding of each parameter; None for NumPy arrays.
        """
        ...


class SeedInitializer:
    """Draws all parameters from a seed."""

    def __init__(self, seed: int) -> None:
        """Takes the seed of the run."""
        self._seed = seed

    def init_layer(self, module: Module, piece: Piece, layer: int, shardings: Tree | None = None) -> Tree:
        """See `ParameterInitializer`."""
        return init_layer_parameters(self._seed, module, piece, layer, shardings)


class CheckpointInitializer:
    """Reads the layers that published checkpoints hold, and takes the other layers from another initializer.

    A layer is read when it is asked for. Of a tensor that is one parameter, unchanged or transposed, only the slices
    that this process's devices hold are read; a tensor that is several parameters, or a slice of one, is read whole.
    Files are mapped into memory, so that the host never holds more than the largest of these.
    """

    def __init__(
        self,
        matches: list[tuple[PublishedCheckpoint, tuple[TensorMatch, ...]]],
        fallback: ParameterInitializer,
    ) -> None:
        """Collects the matches by layer.

        Args:
            matches: Checkpoints and the matches that are read from each; a later checkpoint has precedence.
            fallback: Initializer of all other layers.
        """
        self._fallback = fallback
        self._by_layer: dict[tuple[str, str, str], list[tuple[PublishedCheckpoint, TensorMatch]]] = {}
        for checkpoint, checkpoint_matches in matches:
            for layer in {match.layer for match in checkpoint_matches}:
                self._by_layer.pop(layer, None)
            for match in checkpoint_matches:
                self._by_layer.setdefault(match.layer, []).append((checkpoint, match))

    def init_layer(self, module: Module, piece: Piece, layer: int, shardings: Tree | None = None) -> Tree:
        """See `ParameterInitializer`."""
        key = (module.name, piece.name, layer_name(layer))
        if key not in self._by_layer:
            return self._fallback.init_layer(module, piece, layer, shardings)
        tree, shapes = {}, piece_definition(piece).shapes
        for checkpoint, match in self._by_layer[key]:
            paths = match.paths_in_layer
            match_shardings = [None if shardings is None else get_leaf(shardings, path) for path in paths]
            if match.parameter_shapes != (wanted := tuple(get_leaf(shapes, path).shape for path in paths)):
                arrays = [read_more_rows(checkpoint, match, *wanted, *match_shardings)]
            else:
                arrays = read_match(checkpoint, match, match_shardings)
            for path, array in zip(paths, arrays, strict=True):
                tree = set_leaf(tree, path, array)
        return tree


def read_match(
    checkpoint: PublishedCheckpoint, match: TensorMatch, shardings: list[jax.sharding.Sharding | None]
) -> list[np.ndarray | jax.Array]:
    """Reads the parameters of a match in float32.

    Args:
        checkpoint: The published checkpoint.
        match: The match.
        shardings: Sharding of each parameter of the match; None for a NumPy array.
    """
    names = [checkpoint.tensor_names[name] for name in match.tensor_names]
    if len(match.tensor_names) == len(match.parameter_paths) == 1 and shardings[0] is not None:
        whole = tuple(slice(0, size) for size in match.parameter_shapes[0])
        if match.layout.published_slice(whole) is not None:
            return [_read_slices(checkpoint, names[0], match, shardings[0])]
    tensors = tuple(checkpoint.folder.read(name) for name in names)
    parameters = match.layout.to_parameters(tensors, match.parameter_shapes)
    convert = functools.partial(_to_finite_float32, checkpoint, names)
    return [
        convert(parameter) if sharding is None else _place(parameter, sharding, convert)
        for parameter, sharding in zip(parameters, shardings, strict=True)
    ]


def read_more_rows(
    checkpoint: PublishedCheckpoint, match: TensorMatch, shape: Shape, sharding: jax.sharding.Sharding | None
) -> np.ndarray | jax.Array:
    """Reads a table in float32 that has more rows than the published one; the rows behind it are its mean row.

    transformers' `resize_token_embeddings` does the same, with added noise of a 30,000th of the rows' deviation.

    Args:
        checkpoint: The published checkpoint.
        match: The match of the table, of as many rows as are published.
        shape: Shape of the table `[v, d]`.
        sharding: Its sharding; None for a NumPy array.
    """
    name, (published, _) = checkpoint.tensor_names[match.tensor_names[0]], match.parameter_shapes[0]

    def read(rows: slice, columns: slice) -> np.ndarray:
        return _read_slice(checkpoint, name, match, (rows, columns))

    @functools.cache
    def mean_row(first: int, last: int) -> np.ndarray:
        total = np.zeros(last - first)
        for row in range(0, published, ROWS_OF_MEAN):
            rows = slice(row, min(row + ROWS_OF_MEAN, published))
            total += np.sum(read(rows, slice(first, last)), axis=0, dtype=np.float64)
        return (total / published).astype(np.float32)

    def read_slice(index: Any) -> np.ndarray:
        rows, columns = _bounds(index, shape)
        values = np.empty((rows.stop - rows.start, columns.stop - columns.start), np.float32)
        old = slice(min(rows.start, published), min(rows.stop, published))
        values[: old.stop - old.start] = read(old, columns)
        if rows.stop > published:
            values[old.stop - old.start :] = mean_row(columns.start, columns.stop)
        return values

    if sharding is None:
        return read_slice((slice(None), slice(None)))
    return jax.make_array_from_callback(shape, sharding, read_slice)


def _read_slices(
    checkpoint: PublishedCheckpoint, name: str, match: TensorMatch, sharding: jax.sharding.Sharding
) -> jax.Array:
    """Reads one parameter, each device's slice by itself."""
    (shape,) = match.parameter_shapes
    return jax.make_array_from_callback(
        shape, sharding, lambda index: _read_slice(checkpoint, name, match, _bounds(index, shape))
    )


def _bounds(index: Any, shape: Shape) -> tuple[slice, ...]:
    """Returns the slices of an index with their starts and stops as numbers."""
    return tuple(slice(*bound.indices(size)[:2]) for bound, size in zip(index, shape, strict=True))


def _read_slice(
    checkpoint: PublishedCheckpoint, name: str, match: TensorMatch, bounds: tuple[slice, ...]
) -> np.ndarray:
    """Reads a slice of a parameter that is one tensor."""
    tensor = checkpoint.folder.read(name, match.layout.published_slice(bounds))
    (parameter,) = match.layout.to_parameters((tensor,), (tuple(bound.stop - bound.start for bound in bounds),))
    return _to_finite_float32(checkpoint, [name], parameter)


def _place(
    array: np.ndarray, sharding: jax.sharding.Sharding, convert: Callable[[np.ndarray], np.ndarray]
) -> jax.Array:
    return jax.make_array_from_callback(array.shape, sharding, lambda index: convert(array[index]))


def _to_finite_float32(checkpoint: PublishedCheckpoint, names: Sequence[str], array: np.ndarray) -> np.ndarray:
    """Copies values of these tensors to float32, so that they stay valid when the mapped file is gone.

    Raises:
        UserError: A value is NaN or infinite; otherwise the first step would fail without naming the tensor.
    """
    copy = contiguous_copy(array, np.dtype(np.float32))
    with np.errstate(invalid="ignore"):
        total = np.sum(copy, dtype=np.float64)  # needs no array of their size, and is finite only if all are
    if not np.isfinite(total):
        is_finite = np.isfinite(copy)
        first = copy[~is_finite][0]
        files = ", ".join(dict.fromkeys(checkpoint.folder.files[name].name for name in names))
        named = ", ".join(names[:_SHOWN]) + (" and others" if names[_SHOWN:] else "")
        raise UserError(
            f"{checkpoint.folder.path}: {named} in {files} "
            f"has values that are not finite: {copy.size - np.count_nonzero(is_finite)} of the {copy.size} that are "
            f"read, the first of them {first}; copy the file again, or ask its authors"
        )
    return copy


def parameter_initializer(
    config: ModelConfig, seed: int, weights: tuple[tuple[str, str], ...] = (), changes: Sequence[str] = ()
) -> ParameterInitializer:
    """Makes the initializer of a run. Checkpoints are checked here and read when layers are initialised.

    Args:
        config: The model.
        seed: Seed of everything that no checkpoint gives.
        weights: (part, folder) pairs: a part that trains by name, such as `backbone`, or `model` for everything that
            the folder has; a later pair has precedence.
        changes: Fields of the backbone that may differ from the folders' (`TrainConfig.pretrained_changes`).

    Raises:
        UserError: A folder is not a checkpoint.
        IncompatibleCheckpointError: A checkpoint does not fit the model.
    """
    seed_initializer = SeedInitializer(seed)
    if not weights:
        return seed_initializer
    matches = []
    for part, folder in weights:
        reads_media = module_of_part(config, part) in (WHOLE_MODEL, *(encoder.name for encoder in config.encoders))
        checkpoint = open_checkpoint(pathlib.Path(folder), reads_media)
        matches.append((checkpoint, compatible_matches(checkpoint, config, part, changes)))
    return CheckpointInitializer(matches, seed_initializer)
