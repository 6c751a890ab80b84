"""Phases with rows of their own: the items of a batch dealt over the rows in which a module computes them.

In a global batch a sample lies in one row, the same in every module. A plan may give an encoder or a generator other
rows, as many as suit its replicas, over which the images or clips of a microbatch are dealt anew. What was decided
stands beside the arrays, so that activations can be exchanged (`sharding.runtime.exchange`). Losses are sums over items
with weights of their own, and random numbers are keyed by sample ids, so neither changes.
"""

import dataclasses
import zlib
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from configs.architectures import ModelConfig
from data.errors import DataError
from data.packing.batch_spec import ArraySpec, BatchSpec, HasShapeAndDtype
from data.samples.encoder_format import encoder_format
from sharding.balancing.dealing import DealingError, deal_items
from sharding.plans.plan import Plan
from sharding.plans.unit_plan import PlanError

HostArrays = Mapping[str, Mapping[str, np.ndarray]]
"""`{module: {name: [rows, ...]}}`."""

ITEM_FIELDS = ("microbatch", "row", "place", "phase_row", "phase_place", "length")
"""Columns of an item table: where an item's cells lie in a microbatch of the global batch, and where in the phase."""


class PhaseCapacityError(DataError):
    """The items of a microbatch do not fit into the rows of a phase."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhaseRows:
    """The rows of one phase. A cell is what one place of its activations covers: the values of a token, or an image.

    Attributes:
        module: The encoder or generator.
        is_generator: Whether activations come to the phase, and do not leave it.
        rows: Rows of a microbatch.
        cells: Cells of a row of the global batch.
        capacities: Cells that a row of the phase may have, ascending.
        values: What the plan counts capacities in: the field of the encoder's values, or images.
        values_per_cell: How many of them a cell takes.
    """

    module: str
    is_generator: bool
    rows: int
    cells: int
    capacities: tuple[int, ...]
    values: str
    values_per_cell: int

    @property
    def table_name(self) -> str:
        """Name under which a batch keeps the table of the phase's items, as if it were a module."""
        return f"{self.module} items"

    @property
    def largest(self) -> int:
        """Cells of a row in the arrays of a batch."""
        return self.capacities[-1]

    def layout(self, microbatches: int) -> list[int]:
        """What tells its rows from those of another plan."""
        return [microbatches, self.rows, self.cells, *self.capacities]

    def values_in(self, microbatches: int) -> int:
        """Values that the rows of a step hold."""
        return microbatches * self.rows * self.largest * self.values_per_cell


@dataclasses.dataclass(frozen=True)
class DealtPhases:
    """All phases of a plan that have rows of their own.

    Attributes:
        phases: By module.
        microbatches: Number of microbatches of a step.
    """

    phases: Mapping[str, PhaseRows] = dataclasses.field(default_factory=dict)
    microbatches: int = 1

    def deal(self, arrays: HostArrays) -> dict[str, Mapping[str, np.ndarray]]:
        """The arrays of a global batch with the items of the phases in their rows; those of a dealt batch as they are.

        Returns:
            The arrays; under `PhaseRows.table_name`, `{"items": int32[k, 6]}` with the columns `ITEM_FIELDS`, in cells,
            and under `layout` for which rows they are dealt.

        Raises:
            PhaseCapacityError: The items of a microbatch do not fit into the rows of a phase.
            DataError: The batch is dealt for another plan.
        """
        self._refuse_other_layouts(arrays)
        dealt = dict(arrays)
        for phase in self.phases.values():
            if phase.table_name not in arrays:
                dealt |= _deal_phase_arrays(arrays[phase.module], phase, self.microbatches)
        return dealt

    def _refuse_other_layouts(self, arrays: HostArrays) -> None:
        expected = {phase.table_name: phase.layout(self.microbatches) for phase in self.phases.values()}
        for name, fields in arrays.items():
            if "layout" in fields and fields["layout"].tolist() != expected.get(name):
                raise DataError(
                    f"the {name} of this batch are dealt over the rows of another plan; take the batch from a pipeline "
                    "of this plan, or from one without rows of its own"
                )

    def digest(self, arrays: HostArrays) -> int:
        """CRC-32 of the tables of a dealt batch, which are the same in all processes."""
        tables = (arrays[phase.table_name]["items"] for phase in self.phases.values() if phase.table_name in arrays)
        return zlib.crc32(b"".join(items.tobytes() for items in tables))

    def counts(self, counts: Mapping[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
        """`GlobalBatch.counts` with the capacities of the phases' rows."""
        return {
            module: (real, self.phases[module].values_in(self.microbatches) if module in self.phases else capacity)
            for module, (real, capacity) in counts.items()
        }

    def batch_spec(self, batch_spec: BatchSpec) -> BatchSpec:
        """The spec of a batch after `deal`, without the item tables."""

        def in_phase(phase: PhaseRows, spec: HasShapeAndDtype) -> ArraySpec:
            _, length, *rest = spec.shape
            shape = (self.microbatches * phase.rows, length * phase.largest // phase.cells, *rest)
            return ArraySpec(shape, spec.dtype)

        return {
            module: {
                name: in_phase(self.phases[module], spec) if module in self.phases else spec
                for name, spec in fields.items()
            }
            for module, fields in batch_spec.items()
        }


def plan_phase_rows(plan: Plan, model: ModelConfig, batch_spec: BatchSpec) -> DealtPhases:
    """The phases with rows of their own in a plan.

    Args:
        plan: The plan.
        model: The model.
        batch_spec: Of a global batch.

    Raises:
        PlanError: A capacity is no multiple of what a cell takes.
    """
    phases = {}
    for unit in plan.units:
        if not unit.rows:
            continue
        (module,) = unit.modules
        encoder = next((encoder for encoder in model.encoders if encoder.name == module), None)
        if encoder is None:
            length, per_cell, what = batch_spec[module]["images"].shape[1], 1, "images"
        else:
            length, what = batch_spec[module][encoder.field].shape[1], encoder.field
            per_cell = encoder_format(encoder, length).values_per_token
        rows = batch_spec[model.backbone.name]["tokens"].shape[0] // plan.microbatches
        capacities = unit.capacities or (length * -(-rows // unit.rows),)
        for capacity in capacities:
            if capacity % per_cell:
                raise PlanError(
                    f"unit {unit.name}: the capacity {capacity} must be a multiple of {per_cell}, the {what} of a "
                    f"backbone token of {module}"
                )
        phases[module] = PhaseRows(
            module=module,
            is_generator=encoder is None,
            rows=unit.rows,
            cells=length // per_cell,
            capacities=tuple(capacity // per_cell for capacity in capacities),
            values=what,
            values_per_cell=per_cell,
        )
    return DealtPhases(phases, plan.microbatches)


def _deal_phase_arrays(
    fields: Mapping[str, np.ndarray], phase: PhaseRows, microbatches: int
) -> dict[str, Mapping[str, np.ndarray]]:
    """The arrays of a phase in its rows, and its table of items."""
    rows = len(next(iter(fields.values()))) // microbatches
    items = deal_phase(find_items(fields, phase), phase, rows, microbatches)
    moved = {name: _move_items(array, items, phase, microbatches) for name, array in fields.items()}
    if not phase.is_generator:
        moved["segments"] = _renumber(moved["segments"], items, phase)
    return {phase.module: moved, phase.table_name: {"items": items, "layout": np.array(phase.layout(microbatches))}}


class BatchItems(NamedTuple):
    """The items of a module in the rows of a global batch, in order.

    Attributes:
        rows: Row of each.
        places: Its first cell in the row.
        lengths: Number of its cells.
    """

    rows: Int[np.ndarray, " k"]
    places: Int[np.ndarray, " k"]
    lengths: Int[np.ndarray, " k"]


def find_items(fields: Mapping[str, np.ndarray], phase: PhaseRows) -> BatchItems:
    """The items in the arrays of a module: runs of cells of one number, or images that count in the loss."""
    if phase.is_generator:
        rows, places = np.nonzero(fields["weights"])
        return BatchItems(rows, places, np.ones_like(rows))
    segments = fields["segments"]  # [n, positions]; a class token fills part of its cell
    number = segments.reshape(len(segments), phase.cells, -1).max(axis=2)  # [n, cells], 0 for padding
    changes = np.diff(number, axis=1, prepend=0, append=0) != 0  # [n, cells + 1]
    rows, places = np.nonzero(changes[:, :-1] & (number > 0))
    ends = np.nonzero(changes[:, 1:] & (number > 0))[1] + 1
    return BatchItems(rows, places, ends - places)


def deal_phase(found: BatchItems, phase: PhaseRows, rows: int, microbatches: int) -> Int[np.ndarray, "k 6"]:
    """Deals the items of a batch: the table that `DealtPhases.deal` returns.

    Where items cannot be dealt apart, rows of the batch stay together if they fit as wholes.

    Args:
        found: The items.
        phase: The phase.
        rows: Rows of a microbatch in the global batch.
        microbatches: Number of microbatches.
    """
    items = np.zeros((len(found.rows), len(ITEM_FIELDS)), np.int32)
    items[:, 0], items[:, 1] = np.divmod(found.rows, rows)
    items[:, 2], items[:, 5] = found.places, found.lengths
    bounds = np.searchsorted(items[:, 0], np.arange(microbatches + 1))
    for number, (first, last) in enumerate(zip(bounds[:-1], bounds[1:], strict=True)):
        try:
            dealt = deal_items(found.lengths[first:last], phase.rows, phase.largest)
        except DealingError as error:
            together = phase.largest // phase.cells  # rows of the batch that fit into one of the phase
            if together * phase.rows >= rows:
                items[first:last, 3], turn = np.divmod(items[first:last, 1], together)
                items[first:last, 4] = turn * phase.cells + items[first:last, 2]
                continue
            raise PhaseCapacityError(
                f"microbatch {number}: the {last - first} items of {phase.module} do not fit into {phase.rows} rows of "
                f"{phase.largest * phase.values_per_cell} {phase.values}; raise the largest of the capacities of its "
                f"unit in the plan to at least {error.sufficient * phase.values_per_cell}, or give it more rows"
            ) from error
        items[first:last, 3], items[first:last, 4] = dealt.rows, dealt.places
    return items


def microbatch_items(items: Int[np.ndarray, "k 6"], microbatches: int) -> list[Int[np.ndarray, "_ 6"]]:
    """The items of each microbatch."""
    return np.split(items, np.searchsorted(items[:, 0], np.arange(1, microbatches)))


def first_cells(items: Int[np.ndarray, "k 6"], phase: PhaseRows) -> tuple[np.ndarray, np.ndarray]:
    """The first cell of some items of one microbatch: its number in the global batch's rows, and in the phase's."""
    _, row, place, phase_row, phase_place, _ = items.T.astype(np.int64)
    return row * phase.cells + place, phase_row * phase.largest + phase_place


def _all_cells(items: Int[np.ndarray, "k 6"], phase: PhaseRows) -> tuple[np.ndarray, np.ndarray]:
    """As `first_cells`, of every cell."""
    in_batch, in_phase = (_run_through(first, items[:, 5]) for first in first_cells(items, phase))
    return in_batch, in_phase


def _run_through(first: Int[np.ndarray, " k"], lengths: Int[np.ndarray, " k"]) -> Int[np.ndarray, " c"]:
    """The numbers from each first one on, as many as its length, one run after the other."""
    return np.repeat(first - np.cumsum(lengths) + lengths, lengths) + np.arange(int(lengths.sum()))


def _move_items(array: np.ndarray, items: Int[np.ndarray, "k 6"], phase: PhaseRows, microbatches: int) -> np.ndarray:
    """[n, length, ...] -> [m * rows, ...]: the items at their places in the phase; all else is zero."""
    per_cell, rest = array.shape[1] // phase.cells, array.shape[2:]
    source = array.reshape(microbatches, -1, per_cell, *rest)  # [m, cells of a microbatch, ...]
    moved = np.zeros((microbatches, phase.rows * phase.largest, per_cell, *rest), array.dtype)
    for number, of_microbatch in enumerate(microbatch_items(items, microbatches)):
        in_batch, in_phase = _all_cells(of_microbatch, phase)
        moved[number, in_phase] = source[number, in_batch]
    return moved.reshape(microbatches * phase.rows, phase.largest * per_cell, *rest)


def _renumber(
    segments: Int[np.ndarray, "n positions"], items: Int[np.ndarray, "k 6"], phase: PhaseRows
) -> Int[np.ndarray, "n positions"]:
    """Numbers the items of a row of the phase by 1, 2, ...; what was 0 stays so."""
    row = items[:, 0].astype(np.int64) * phase.rows + items[:, 3]
    order = np.lexsort((items[:, 4], row))
    number = np.empty(len(items), np.int32)
    number[order] = np.arange(len(items)) - np.searchsorted(row[order], row[order]) + 1
    cells = np.zeros((len(segments), phase.largest), segments.dtype)
    cells.ravel()[_run_through(row * phase.largest + items[:, 4], items[:, 5])] = np.repeat(number, items[:, 5])
    return np.where(segments > 0, np.repeat(cells, segments.shape[1] // phase.largest, axis=1), 0)
