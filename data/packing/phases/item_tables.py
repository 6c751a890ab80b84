"""Item tables: which item of a batch lies where, in the rows of the global batch and in the rows of a phase.

They are made on the host from the sizes of items; `sharding.runtime.exchange` moves activations by them.
"""

import heapq
import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from data.errors import DataError
from data.packing.phases.phase_rows import PhaseRows
from data.packing.phases.row_nodes import rows_near_their_items
from data.samples.sample import SampleSizes
from sharding.balancing.dealing import DealingError, deal_items

_MOST_NAMED = 5
"""Most samples that an error names of a microbatch that does not fit."""

ITEM_FIELDS = ("microbatch", "row", "place", "phase_row", "phase_place", "length")
"""Columns of an item table: where an item's slots lie in a microbatch of the global batch, and where in the phase."""


class PhaseCapacityError(DataError):
    """The items of a microbatch do not fit into the rows of a phase."""


class BatchItems(NamedTuple):
    """The items of a module in the rows of a global batch, in order.

    Attributes:
        rows: Row of each item.
        places: First token slot of each item in its row.
        lengths: Token slots of each item.
    """

    rows: Int[np.ndarray, " k"]
    places: Int[np.ndarray, " k"]
    lengths: Int[np.ndarray, " k"]


class PlannedTable(NamedTuple):
    """The items of a phase in a planned step, before any of them is decoded.

    Attributes:
        items: The item table, with the columns `ITEM_FIELDS`.
        samples: Sample id of each item.
    """

    items: Int[np.ndarray, "k 6"]
    samples: Int[np.ndarray, " k"]


def plan_table(
    rows: Sequence[Sequence[int]], sizes: Mapping[int, SampleSizes], phase: PhaseRows, microbatches: int
) -> PlannedTable:
    """The items of a step, which lie where `data.packing.rows.packed_rows.pack_rows` puts them, dealt over a phase.

    Args:
        rows: Sample ids of every row.
        sizes: Sizes of each sample, by id.
        phase: The phase.
        microbatches: Number of microbatches.

    Raises:
        PhaseCapacityError: The items of a microbatch do not fit into the rows of the phase.
    """
    lengths_of = {
        sample_id: (1,) * sizes[sample_id].images if phase.is_generator else sizes[sample_id].items[phase.values]
        for sample_id in itertools.chain.from_iterable(rows)
    }
    samples_of_items = [[sample_id for sample_id in row for _ in lengths_of[sample_id]] for row in rows]
    lengths = np.array([length for row in rows for sample_id in row for length in lengths_of[sample_id]], np.int64)
    lengths //= phase.values_per_slot
    row_of = np.repeat(np.arange(len(rows)), [len(item_samples) for item_samples in samples_of_items])
    begins = np.cumsum(lengths) - lengths
    places = begins - begins[np.searchsorted(row_of, row_of)]
    samples = np.array([*itertools.chain.from_iterable(samples_of_items)], np.int64)
    batch_items = BatchItems(row_of, places, lengths)
    return PlannedTable(deal_phase(batch_items, phase, len(rows) // microbatches, microbatches, samples), samples)


def deal_phase(
    batch_items: BatchItems,
    phase: PhaseRows,
    rows: int,
    microbatches: int,
    samples: Int[np.ndarray, " k"] | None = None,
) -> Int[np.ndarray, "k 6"]:
    """Deals the items of a batch over the rows of a phase, a microbatch at a time; the table has `ITEM_FIELDS`.

    The items of a microbatch are dealt so that the smallest capacity holds them that can (`chosen_capacities`), and
    within it by their cost (`PhaseRows.quadratic_cost_weight`). Where they cannot be dealt apart, rows of the batch
    stay together if they fit as wholes. Rows of the phase lie on the nodes of most of their items, as far as they can
    (`rows_near_their_items`).

    Args:
        batch_items: The items.
        phase: The phase.
        rows: Rows of a microbatch in the global batch.
        microbatches: Number of microbatches.
        samples: Id of the sample of each item, for errors; None where they are not known.

    Raises:
        PhaseCapacityError: The items of a microbatch do not fit into the rows of the phase.
    """
    items = np.zeros((len(batch_items.rows), len(ITEM_FIELDS)), np.int32)
    items[:, 0], items[:, 1] = np.divmod(batch_items.rows, rows)
    items[:, 2], items[:, 5] = batch_items.places, batch_items.lengths
    bounds = np.searchsorted(items[:, 0], np.arange(microbatches + 1))
    weight_of_slots = phase.quadratic_cost_weight * phase.values_per_slot  # c slots of v values cost v (c + w v c^2)
    for number, (first, last) in enumerate(zip(bounds[:-1], bounds[1:], strict=True)):
        try:
            dealt = deal_items(batch_items.lengths[first:last], phase.rows, phase.capacities, weight_of_slots)
        except DealingError as error:
            if phase.largest >= (any_batch := phase.sufficient(rows)):
                together = phase.largest // phase.slots  # rows of the batch that fit into one of the phase
                items[first:last, 3], turn = np.divmod(items[first:last, 1], together)
                items[first:last, 4] = turn * phase.slots + items[first:last, 2]
                continue
            ids = None if samples is None else samples[first:last]
            enough = min(error.sufficient, any_batch)
            raise _capacity_error(batch_items.lengths[first:last], ids, phase, number, enough, any_batch) from error
        items[first:last, 3], items[first:last, 4] = dealt.rows, dealt.places
        if phase.nodes > 1:
            items[first:last, 3] = rows_near_their_items(
                batch_items.lengths[first:last], dealt.rows, items[first:last, 1], (phase.rows, rows), phase.nodes
            )
    return items


def items_in_rows(items: Int[np.ndarray, "k 6"], phase: PhaseRows, rows: Collection[int]) -> np.ndarray:
    """bool[k]: which items lie in some rows of a phase, numbered through all microbatches."""
    row = items[:, 0].astype(np.int64) * phase.rows + items[:, 3]
    return np.isin(row, np.fromiter(rows, np.int64, len(rows)))


def _capacity_error(
    lengths: Int[np.ndarray, " k"],
    samples: Int[np.ndarray, " k"] | None,
    phase: PhaseRows,
    microbatch: int,
    sufficient: int,
    any_batch: int,
) -> PhaseCapacityError:
    """The error for items that do not fit: rows of `sufficient` slots hold them, of `any_batch` slots any others."""
    scale = phase.values_per_slot
    held, longest, where = (
        phase.largest * scale,
        int(lengths.max()) * scale,
        f"microbatch {microbatch} of unit {phase.unit}",
    )
    remedy = (
        f"raise the largest of the unit's capacities in the plan to at least {sufficient * scale} "
        f"({any_batch * scale} suffices for any batch)"
    )
    named = ""
    if samples is not None:
        ids, sample_numbers = np.unique(samples, return_inverse=True)
        sums = (np.bincount(sample_numbers, lengths).astype(np.int64) * scale).tolist()
        most = heapq.nsmallest(
            _MOST_NAMED, zip(sums, ids.tolist(), strict=True), key=lambda total: (-total[0], total[1])
        )
        named = f"; samples with the most {phase.values}: " + ", ".join(f"{sample} ({count})" for count, sample in most)
    if longest > held:
        problem = f"an item of {phase.module} has {longest} {phase.values}, and one of its rows holds {held}"
        return PhaseCapacityError(f"{where}: {problem}; {remedy}{named}")
    problem = f"the {len(lengths)} items of {phase.module} do not fit into {phase.rows} rows of {held} {phase.values}"
    return PhaseCapacityError(f"{where}: {problem}; {remedy}, or give it more rows{named}")


def microbatch_items(items: Int[np.ndarray, "k 6"], microbatches: int) -> list[Int[np.ndarray, "_ 6"]]:
    """The items of each microbatch."""
    return np.split(items, np.searchsorted(items[:, 0], np.arange(1, microbatches)))


def chosen_capacities(items: Int[np.ndarray, "k 6"], phase: PhaseRows, microbatches: int) -> tuple[int | None, ...]:
    """For each microbatch the number of the smallest capacity that holds its items; None if it has none."""
    ends = [int((table[:, 4] + table[:, 5]).max(initial=0)) for table in microbatch_items(items, microbatches)]
    return tuple(int(np.searchsorted(phase.capacities, end)) if end else None for end in ends)


def first_slots(items: Int[np.ndarray, "k 6"], phase: PhaseRows, capacity: int) -> tuple[np.ndarray, np.ndarray]:
    """The first slot of some items of one microbatch: its number in the global batch's rows, and in the phase's.

    Args:
        items: The items.
        phase: The phase.
        capacity: Slots of one of its rows.
    """
    _, row, place, phase_row, phase_place, _ = items.T.astype(np.int64)
    return row * phase.slots + place, phase_row * capacity + phase_place
