"""Checks of an item table that a batch brings along: every item once, at a place that holds it, as the arrays have it.

Everything is found on the host, before activations are exchanged by the table: an item that it loses would be computed
from zeros, and one that it repeats would overwrite another.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np
from jaxtyping import Bool, Int

from data.errors import DataError
from data.packing.phases.item_arrays import find_items
from data.packing.phases.item_tables import ITEM_FIELDS
from data.packing.phases.phase_rows import PhaseRows


class ItemTableError(DataError):
    """An item table loses, repeats or misplaces an item."""


def check_items(
    items: np.ndarray,
    phase: PhaseRows,
    rows: int,
    microbatches: int,
    fields: Mapping[str, np.ndarray],
    encoder_index: Int[np.ndarray, "n s"] | None,
) -> None:
    """Raises ItemTableError, naming an item, if a table of items does not fit a batch. Empty rows are in order.

    Args:
        items: The table, of columns `ITEM_FIELDS`.
        phase: The phase that it is for.
        rows: Rows of a microbatch in the global batch.
        microbatches: Number of microbatches.
        fields: The arrays of the phase in its rows.
        encoder_index: For every backbone token, -1 or the cell of its row whose output it takes; None of a generator.
    """
    if items.ndim != 2 or items.shape[1] != len(ITEM_FIELDS) or not np.issubdtype(items.dtype, np.integer):
        raise ItemTableError(
            f"the table of {phase.module} is {items.dtype}{list(items.shape)}; it has a whole number for each of "
            f"{', '.join(ITEM_FIELDS)} of every item"
        )
    microbatch, row, place, phase_row, phase_place, length = items.T.astype(np.int64)

    def require(holds: Bool[np.ndarray, " k"], what: str) -> None:
        if not holds.all():
            number = int(np.argmin(holds))
            columns = zip(ITEM_FIELDS, items[number].tolist(), strict=True)
            values = ", ".join(f"{name} {value}" for name, value in columns)
            raise ItemTableError(f"the table of {phase.module}: item {number} ({values}) {what}")

    require((microbatch >= 0) & (microbatch < microbatches), f"is in none of {microbatches} microbatches")
    require(np.diff(microbatch, prepend=0) >= 0, "follows one of a later microbatch; order them by microbatch")
    in_row = (row >= 0) & (row < rows) & (place >= 0) & (length > 0) & (place + length <= phase.cells)
    require(in_row, f"is outside the {rows} rows of {phase.cells} cells of a microbatch")
    in_phase_row = (phase_row >= 0) & (phase_row < phase.rows)
    in_phase_row &= (phase_place >= 0) & (phase_place + length <= phase.largest)
    require(in_phase_row, f"is outside the phase's {phase.rows} rows of {phase.largest} cells")
    in_batch = _Runs((microbatch * rows + row) * phase.cells + place, length)
    in_phase = _Runs((microbatch * phase.rows + phase_row) * phase.largest + phase_place, length)
    require(~in_batch.overlap, "repeats cells of another in the rows of the batch")
    require(~in_phase.overlap, "lies on another in the rows of the phase")
    found = find_items(fields, dataclasses.replace(phase, cells=phase.largest))
    known = in_phase.hold(found.rows * phase.largest + found.places, found.lengths)
    if not known.all():
        number = int(np.argmin(known))
        raise ItemTableError(
            f"the table of {phase.module} loses or misplaces an item: row {found.rows[number]} of the phase has one "
            f"from cell {found.places[number]} on, of which it knows nothing"
        )
    if encoder_index is not None:
        taking, token = np.nonzero(encoder_index >= 0)
        cell = encoder_index[taking, token].astype(np.int64)
        held = in_batch.cover(taking * phase.cells + cell)
        if not held.all():
            number = int(np.argmin(held))
            raise ItemTableError(
                f"the table of {phase.module} loses an item: token {token[number]} of row {taking[number]} takes the "
                f"output of cell {cell[number]} of its row, which no item has"
            )


class _Runs:
    """Runs of cells, numbered through all rows.

    Attributes:
        overlap: Whether a run begins before the one before it has ended.
    """

    def __init__(self, first: Int[np.ndarray, " k"], lengths: Int[np.ndarray, " k"]) -> None:
        order = np.argsort(first, kind="stable")
        self._first, self._ends = first[order], (first + lengths)[order]
        self.overlap = np.zeros(len(first), bool)
        self.overlap[order[1:]] = self._first[1:] < self._ends[:-1]

    def cover(self, cells: Int[np.ndarray, " c"]) -> Bool[np.ndarray, " c"]:
        """Whether each cell lies in a run."""
        before = np.searchsorted(self._first, cells, side="right") - 1
        return (before >= 0) & (cells < np.append(self._ends, 0)[before])

    def hold(self, first: Int[np.ndarray, " r"], lengths: Int[np.ndarray, " r"]) -> Bool[np.ndarray, " r"]:
        """Whether each of some runs is one of these."""
        at = np.searchsorted(self._first, first)
        is_known = np.append(self._first, -1)[at] == first
        return is_known & (np.append(self._ends, -1)[at] == first + lengths)
