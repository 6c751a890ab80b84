"""Batches of which a host needs some rows: the others are alike, and one of them stands for all on the way."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from data.packing.global_batch import GlobalBatch


def slice_rows(batch: GlobalBatch, rows: Sequence[int] | None) -> GlobalBatch:
    """The needed rows of a batch whose others are empty (`Loader.rows`), and one empty row behind them.

    The sample ids stay whole, for they are known of every row. A batch of which all rows are needed is returned as it
    is.
    """
    needed, empty = _split(len(batch.sample_ids), rows)
    if not empty:
        return batch
    return _changed(batch, lambda array: array[[*needed, empty[0]]])


def restore_rows(batch: GlobalBatch, rows: Sequence[int] | None) -> GlobalBatch:
    """What was given to `cut`."""
    count = len(batch.sample_ids)
    needed, empty = _split(count, rows)
    if not empty:
        return batch
    source = np.full(count, len(needed))
    source[needed] = np.arange(len(needed))
    return _changed(batch, lambda array: array[source])


def _split(count: int, rows: Sequence[int] | None) -> tuple[list[int], list[int]]:
    needed = set(range(count) if rows is None else rows)
    return sorted(needed), [row for row in range(count) if row not in needed]


def _changed(batch: GlobalBatch, change: Callable[[np.ndarray], np.ndarray]) -> GlobalBatch:
    arrays = {
        module: {name: change(array) for name, array in fields.items()} for module, fields in batch.arrays.items()
    }
    return dataclasses.replace(batch, arrays=arrays)
