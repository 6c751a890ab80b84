"""The arrays of a module in its phase rows: items are found in the rows of a batch, and moved to rows of the phase."""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Int

from data.packing.phases.item_tables import BatchItems, first_slots, microbatch_items
from data.packing.phases.phase_rows import PhaseRows


def move_to_phase(
    fields: Mapping[str, np.ndarray], items: Int[np.ndarray, "k 6"], phase: PhaseRows, microbatches: int
) -> dict[str, np.ndarray]:
    """The arrays of a module with the items of a table in the rows of the phase; all else is empty."""
    moved = {name: _move_items(array, items, phase, microbatches) for name, array in fields.items()}
    if not phase.is_generator:
        moved["segments"] = _renumber(moved["segments"], items, phase)
    return moved


def find_items(fields: Mapping[str, np.ndarray], phase: PhaseRows) -> BatchItems:
    """The items in the arrays of a module: runs of slots of one number, or images that count in the loss."""
    if phase.is_generator:
        rows, places = np.nonzero(fields["weights"])
        return BatchItems(rows, places, np.ones_like(rows))
    segments = fields["segments"]  # [n, positions]; a class token fills one position of its slot
    number = segments.reshape(len(segments), phase.slots, -1).max(axis=2)  # [n, slots], 0 for padding
    changes = np.diff(number, axis=1, prepend=0, append=0) != 0  # [n, slots + 1]
    rows, places = np.nonzero(changes[:, :-1] & (number > 0))
    ends = np.nonzero(changes[:, 1:] & (number > 0))[1] + 1
    return BatchItems(rows, places, ends - places)


def _all_cells(items: Int[np.ndarray, "k 6"], phase: PhaseRows) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of all token slots of some items: in the global batch's rows, and in the phase's (`first_slots`)."""
    in_batch, in_phase = (run_through(first, items[:, 5]) for first in first_slots(items, phase, phase.largest))
    return in_batch, in_phase


def run_through(first: Int[np.ndarray, " k"], lengths: Int[np.ndarray, " k"]) -> Int[np.ndarray, " c"]:
    """The numbers from each first one on, as many as its length, one run after the other."""
    return np.repeat(first - np.cumsum(lengths) + lengths, lengths) + np.arange(int(lengths.sum()))


def _move_items(array: np.ndarray, items: Int[np.ndarray, "k 6"], phase: PhaseRows, microbatches: int) -> np.ndarray:
    """[n, length, ...] -> [m * rows, ...]: the items at their places in the phase; all else is zero."""
    per_slot, rest = array.shape[1] // phase.slots, array.shape[2:]
    source = array.reshape(microbatches, -1, per_slot, *rest)  # [m, slots of a microbatch, ...]
    moved = np.zeros((microbatches, phase.rows * phase.largest, per_slot, *rest), array.dtype)
    for number, moved_items in enumerate(microbatch_items(items, microbatches)):
        in_batch, in_phase = _all_cells(moved_items, phase)
        moved[number, in_phase] = source[number, in_batch]
    return moved.reshape(microbatches * phase.rows, phase.largest * per_slot, *rest)


def _renumber(
    segments: Int[np.ndarray, "n positions"], items: Int[np.ndarray, "k 6"], phase: PhaseRows
) -> Int[np.ndarray, "n positions"]:
    """Numbers the items of a row of the phase by 1, 2, ...; padding stays 0."""
    row = items[:, 0].astype(np.int64) * phase.rows + items[:, 3]
    order = np.lexsort((items[:, 4], row))
    number = np.empty(len(items), np.int32)
    number[order] = np.arange(len(items)) - np.searchsorted(row[order], row[order]) + 1
    slots = np.zeros((len(segments), phase.largest), segments.dtype)
    slots.ravel()[run_through(row * phase.largest + items[:, 4], items[:, 5])] = np.repeat(number, items[:, 5])
    return np.where(segments > 0, np.repeat(slots, segments.shape[1] // phase.largest, axis=1), 0)
