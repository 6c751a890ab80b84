"""Checks of an item table that a batch brings along: every item occurs once, at the place where the arrays have it.

Everything is found on the host, before activations are exchanged by the table: an item that it loses would be computed
from zeros, and one that it repeats would overwrite another.
"""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Bool, Int

from data.errors import DataError
from data.packing.phases.item_arrays import run_through
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
        encoder_index: For every backbone token, -1 or the slot of its row whose output it takes; None of a generator.
    """
    if items.ndim != 2 or items.shape[1] != len(ITEM_FIELDS) or not np.issubdtype(items.dtype, np.integer):
        raise ItemTableError(
            f"the table of {phase.module} is {items.dtype}{list(items.shape)}; it has a whole number for each of "
            f"{', '.join(ITEM_FIELDS)} of every item"
        )
    microbatch, row, place, phase_row, phase_place, length = items.T.astype(np.int64)

    def require(holds: Bool[np.ndarray, " k"], problem: str) -> None:
        if not holds.all():
            number = int(np.argmin(holds))
            columns = zip(ITEM_FIELDS, items[number].tolist(), strict=True)
            values = ", ".join(f"{name} {value}" for name, value in columns)
            raise ItemTableError(f"the table of {phase.module}: item {number} ({values}) {problem}")

    require((microbatch >= 0) & (microbatch < microbatches), f"is in none of {microbatches} microbatches")
    require(np.diff(microbatch, prepend=0) >= 0, "follows one of a later microbatch; order them by microbatch")
    in_row = (row >= 0) & (row < rows) & (place >= 0) & (length > 0) & (place + length <= phase.slots)
    require(in_row, f"is outside the {rows} rows of {phase.slots} slots of a microbatch")
    in_phase_row = (phase_row >= 0) & (phase_row < phase.rows)
    in_phase_row &= (phase_place >= 0) & (phase_place + length <= phase.largest)
    require(in_phase_row, f"is outside the phase's {phase.rows} rows of {phase.largest} slots")
    first_in_batch = (microbatch * rows + row) * phase.slots + place
    first_in_phase = (microbatch * phase.rows + phase_row) * phase.largest + phase_place
    require(_begins_after_others(first_in_batch, length), "repeats slots of another in the rows of the batch")
    require(_begins_after_others(first_in_phase, length), "lies on another in the rows of the phase")
    # [slots of the phase, positions of a slot]: the number of an item, or whether an image counts in the loss
    filled = fields["weights" if phase.is_generator else "segments"]
    filled = filled.reshape(microbatches * phase.rows * phase.largest, -1)
    slots = run_through(first_in_phase, length)
    if np.count_nonzero(filled) > np.count_nonzero(filled[slots]):
        outside = (filled != 0).any(axis=1)
        outside[slots] = False
        at_row, at_slot = divmod(int(outside.argmax()), phase.largest)
        raise ItemTableError(
            f"the table of {phase.module} loses or misplaces an item: row {at_row} of the phase has one at slot "
            f"{at_slot}, of which it knows nothing"
        )
    if encoder_index is None:
        return
    begin, end = (filled[slot].max(axis=1, initial=0) for slot in (first_in_phase, first_in_phase + length - 1))
    require(begin == end, "is not one item in the rows of the phase")
    held = np.zeros(microbatches * rows * phase.slots, bool)
    held[run_through(first_in_batch, length)] = True
    taking = np.flatnonzero(encoder_index >= 0)
    at_row, slot = taking // encoder_index.shape[1], encoder_index.ravel()[taking]
    is_held = (slot < phase.slots) & held[at_row * phase.slots + np.minimum(slot, phase.slots - 1)]
    if not is_held.all():
        number = int(np.argmin(is_held))
        raise ItemTableError(
            f"the table of {phase.module} loses an item: token {taking[number] % encoder_index.shape[1]} of row "
            f"{at_row[number]} takes the output of slot {slot[number]} of its row, which no item has"
        )


def _begins_after_others(first: Int[np.ndarray, " k"], lengths: Int[np.ndarray, " k"]) -> Bool[np.ndarray, " k"]:
    """Whether each of some runs of slots begins after the end of every run that begins before it."""
    order = np.argsort(first, kind="stable")
    holds = np.ones(len(first), bool)
    holds[order[1:]] = first[order[1:]] >= (first + lengths)[order[:-1]]
    return holds
