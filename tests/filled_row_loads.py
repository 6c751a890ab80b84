"""Loads of the rows of batches that are made, counted segment by segment: what planned loads must equal."""

from collections.abc import Iterator, Mapping

import numpy as np

from sharding.specs.layers.layer import make_loads
from sharding.specs.layers.module_spec import ModuleSpec
from sharding.specs.modules import ModuleGraph

HostArrays = Mapping[str, Mapping[str, np.ndarray]]


def filled_row_loads(arrays: HostArrays, graph: ModuleGraph) -> dict[str, np.ndarray]:
    """Loads [n, 4] of the rows of every module as their samples fill them, without padding."""
    return {
        module.name: np.array([_segment_loads(*row, module) for row in _rows_of_segments(arrays[module.name])])
        if "segments" in arrays[module.name]
        else np.array([make_loads(items=int((row > 0).sum())) for row in arrays[module.name]["weights"]])
        for module in graph.modules
    }


def _rows_of_segments(arrays: Mapping[str, np.ndarray]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Segments and positions of every row; encoders may have none of the latter."""
    segments = arrays["segments"]
    yield from zip(segments, arrays.get("positions", segments), strict=True)


def _segment_loads(segments: np.ndarray, positions: np.ndarray, module: ModuleSpec) -> np.ndarray:
    """The load of the segments of a row [s]; 0 is padding.

    Class tokens and registers attend as one position each and take whole cells.
    """
    lengths = np.bincount(segments[segments > 0])
    numbers, lengths = np.flatnonzero(lengths), lengths[lengths > 0].astype(float)
    cells = segments.reshape(-1, module.values_per_slot // module.values_per_position)
    pairs, local = 0.0, module.local
    if local is not None and local.kind == "square":
        grids = (1 + positions[segments == number].max(axis=0) for number in numbers)
        pairs = sum(pairs_of_image(local.size, int(rows), int(columns)) for rows, columns in grids)
    elif local is not None:
        pairs = float(local.pairs(lengths).sum())
    tokens = (cells > 0).any(axis=1).sum() * cells.shape[1]
    return make_loads(tokens, np.square(lengths).sum(), len(lengths), pairs)


def pairs_of_image(size: int, rows: int, columns: int) -> int:
    """Pairs that attend in an image of so many patches, in squares of `size` patches a side."""

    def squares(length: int) -> int:
        whole, rest = divmod(length, size)
        return whole * size**2 + rest**2

    return squares(rows) * squares(columns)
