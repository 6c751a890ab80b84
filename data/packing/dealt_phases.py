"""Phases with rows of their own: the items of a batch dealt over the rows in which a module computes them.

In a global batch a sample lies in one row, the same in every module. A plan may give an encoder or a generator other
rows, as many as suit its replicas, over which the images or clips of a microbatch are dealt anew. The item tables stand
beside the arrays, so that activations can be exchanged (`sharding.runtime.exchange`). Losses are sums over items with
weights of their own, and random numbers are keyed by sample ids, so neither changes.
"""

import dataclasses
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from configs.architectures import ModelConfig
from data.data_config import QuadraticCostWeights
from data.errors import DataError
from data.packing.batch_spec import ArraySpec, BatchSpec, HasShapeAndDtype
from data.packing.phases.item_arrays import find_items, move_to_phase
from data.packing.phases.item_tables import PlannedTable, chosen_capacities, deal_phase, items_in_rows, plan_table
from data.packing.phases.needed_rows import NeededRows
from data.packing.phases.phase_rows import PhaseRows, RowValues
from data.packing.phases.row_nodes import shared_nodes
from data.packing.phases.table_check import check_items
from data.samples.encoder_format import encoder_format
from data.samples.sample import SampleSizes
from sharding.plans.plan import Plan
from sharding.plans.plan_error import PlanError
from sharding.plans.text.device_ranges import MAX_DEVICES

HostArrays = Mapping[str, Mapping[str, np.ndarray]]
"""`{module: {name: [rows, ...]}}`."""


@dataclasses.dataclass(frozen=True)
class DealtPhases:
    """All phases of a plan that have rows of their own.

    Attributes:
        phases: Rows of each phase, by module name.
        microbatches: Number of microbatches of a step.
    """

    phases: Mapping[str, PhaseRows] = dataclasses.field(default_factory=dict)
    microbatches: int = 1

    def deal(self, arrays: HostArrays) -> dict[str, Mapping[str, np.ndarray]]:
        """The arrays of a global batch with the items of the phases in their rows; a dealt batch stays as it is.

        Returns:
            The arrays; under `PhaseRows.table_name`, `{"items": int32[k, 6]}` with the columns `ITEM_FIELDS`, in slots,
            and under `layout` the numbers of `PhaseRows.layout`.

        Raises:
            PhaseCapacityError: The items of a microbatch do not fit into the rows of a phase.
            DataError: The batch is dealt for another plan.
            ItemTableError: A table that the batch brings along loses, repeats or misplaces an item.
        """
        self._refuse_other_layouts(arrays)
        dealt = dict(arrays)
        for phase in self.phases.values():
            if phase.table_name in arrays:
                self._check_table(arrays, phase)
                continue
            fields = arrays[phase.module]
            rows = len(next(iter(fields.values()))) // self.microbatches
            items = deal_phase(find_items(fields, phase), phase, rows, self.microbatches)
            dealt |= self._move(fields, phase, items, items)
        return dealt

    def plan(self, rows: Sequence[Sequence[int]], sizes: Mapping[int, SampleSizes]) -> dict[str, PlannedTable]:
        """The items of every phase in a step, dealt from the sizes of its samples alone; errors as of `deal`.

        Args:
            rows: Sample ids of every row.
            sizes: Sizes of each sample, by id.
        """
        return {module: plan_table(rows, sizes, phase, self.microbatches) for module, phase in self.phases.items()}

    def deal_planned(
        self, arrays: HostArrays, tables: Mapping[str, PlannedTable], needed: NeededRows
    ) -> dict[str, Mapping[str, np.ndarray]]:
        """The arrays as of `deal`, by the tables of `plan`, with the items of the needed rows alone.

        The places of other items, and of items whose samples decoding refused, stay empty.

        All processes have the same tables, whatever each of them needs or could read.
        """
        dealt = dict(arrays)
        for module, phase in self.phases.items():
            items = tables[module].items
            local = items_in_rows(items, phase, needed.phases[module]) if module in needed.phases else slice(None)
            dealt |= self._move(arrays[module], phase, items, items[local])
        return dealt

    def samples(self, tables: Mapping[str, PlannedTable], needed: NeededRows) -> set[int]:
        """Ids of the samples that have an item in a needed row of a phase."""
        sample_ids: set[int] = set()
        for module, (items, samples) in tables.items():
            if module in needed.phases:
                samples = samples[items_in_rows(items, self.phases[module], needed.phases[module])]
            sample_ids.update(samples.tolist())
        return sample_ids

    def _move(
        self, fields: Mapping[str, np.ndarray], phase: PhaseRows, items: np.ndarray, moved: np.ndarray
    ) -> dict[str, Mapping[str, np.ndarray]]:
        """The arrays of a phase with some of its items in their rows, and the table of all its items."""
        layout = np.array(phase.layout(self.microbatches))
        return {
            phase.module: move_to_phase(fields, moved, phase, self.microbatches),
            phase.table_name: {"items": items, "layout": layout},
        }

    def _refuse_other_layouts(self, arrays: HostArrays) -> None:
        expected = {phase.table_name: phase.layout(self.microbatches) for phase in self.phases.values()}
        for name, fields in arrays.items():
            if "layout" in fields and fields["layout"].tolist() != expected.get(name):
                raise DataError(
                    f"the {name} of this batch are dealt over the rows of another plan; take the batch from a pipeline "
                    "of this plan, or from one without rows of its own"
                )

    def _check_table(self, arrays: HostArrays, phase: PhaseRows) -> None:
        backbone_array = f"{phase.module}_conditions" if phase.is_generator else f"{phase.module}_index"
        (token_slots,) = (fields[backbone_array] for fields in arrays.values() if backbone_array in fields)
        check_items(
            arrays[phase.table_name]["items"],
            phase,
            len(token_slots) // self.microbatches,
            self.microbatches,
            arrays[phase.module],
            None if phase.is_generator else token_slots,
        )

    def digest(self, arrays: HostArrays) -> int:
        """CRC-32 of the tables of a dealt batch, which are the same in all processes."""
        tables = (arrays[phase.table_name]["items"] for phase in self.phases.values() if phase.table_name in arrays)
        return zlib.crc32(b"".join(items.tobytes() for items in tables))

    def capacities(self, arrays: HostArrays) -> dict[str, tuple[int | None, ...]]:
        """By phase, the number of the capacity with which each microbatch of a dealt batch runs, as its table has it.

        None for a microbatch without items, which does not run there.
        """
        return {
            module: chosen_capacities(arrays[phase.table_name]["items"], phase, self.microbatches)
            for module, phase in self.phases.items()
        }

    def counts(self, counts: Mapping[str, tuple[int, int]], arrays: HostArrays) -> dict[str, tuple[int, int]]:
        """`GlobalBatch.real_and_capacity` of a dealt batch: real values, and capacity of the phase rows that run."""
        computed = {
            module: self.phases[module].values_in(numbers) for module, numbers in self.capacities(arrays).items()
        }
        return {module: (real, computed.get(module, capacity)) for module, (real, capacity) in counts.items()}

    def to_json(self) -> dict[str, Any]:
        """The phases as JSON values."""
        return {"microbatches": self.microbatches, "phases": [phase.to_json() for phase in self.phases.values()]}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "DealtPhases":
        """The phases that `to_json` wrote.

        Raises:
            DataError: A number is not a whole one above 0.
        """
        phases, microbatches = [PhaseRows.from_json(phase) for phase in fields["phases"]], fields["microbatches"]
        if type(microbatches) is not int or microbatches < 1:
            raise DataError(f"microbatches are a whole number above 0; they are {microbatches!r}")
        return cls({phase.module: phase for phase in phases}, microbatches)

    def batch_spec(self, batch_spec: BatchSpec) -> BatchSpec:
        """The spec of a batch after `deal`, without the item tables."""

        def in_phase(phase: PhaseRows, spec: HasShapeAndDtype) -> ArraySpec:
            _, length, *rest = spec.shape
            shape = (self.microbatches * phase.rows, length * phase.largest // phase.slots, *rest)
            return ArraySpec(shape, spec.dtype)

        return {
            module: {
                name: in_phase(self.phases[module], spec) if module in self.phases else spec
                for name, spec in fields.items()
            }
            for module, fields in batch_spec.items()
        }


NO_PHASES = DealtPhases()
"""The phases of a plan in which every module has the rows of the global batch: none."""


def plan_phase_rows(
    plan: Plan,
    model: ModelConfig,
    batch_spec: BatchSpec,
    devices_per_node: int = MAX_DEVICES,
    quadratic_cost_weights: QuadraticCostWeights = (),
) -> DealtPhases:
    """The phases with rows of their own in a plan.

    Args:
        plan: The plan.
        model: The model.
        batch_spec: The spec of a global batch.
        devices_per_node: Consecutive devices of a plan that are one node; by default all are.
        quadratic_cost_weights: `DataConfig.quadratic_cost_weights`.

    Raises:
        PlanError: A capacity is no multiple of the values of a token slot.
        DataError: A quadratic cost weight is of a field that no encoder with rows of its own reads.
    """
    values_of = row_values(model, batch_spec)
    _check_quadratic_cost_weights(quadratic_cost_weights, plan, model)
    weights = dict(quadratic_cost_weights)
    rows = batch_spec[model.backbone.name]["tokens"].shape[0] // plan.microbatches
    phases = {}
    for unit in plan.units:
        if not unit.phase_rows:
            continue
        (module,) = unit.modules
        values = values_of[module]
        capacities = unit.capacities or (values.count * -(-rows // unit.phase_rows),)
        for capacity in capacities:
            if capacity % values.per_slot:
                raise PlanError(
                    f"unit {unit.name}: the capacity {capacity} must be a multiple of {values.per_slot}, the "
                    f"{values.field} of a backbone token of {module}"
                )
        is_generator = module in {generator.name for generator in model.generators}
        backbone = plan.unit_of(model.backbone.name)
        stage = backbone.stage_count - 1 if is_generator else 0
        phases[module] = PhaseRows(
            module=module,
            unit=unit.name,
            is_generator=is_generator,
            rows=unit.phase_rows,
            slots=values.count // values.per_slot,
            capacities=tuple(capacity // values.per_slot for capacity in capacities),
            values=values.field,
            values_per_slot=values.per_slot,
            nodes=shared_nodes(unit, backbone, stage, rows, plan.microbatches, devices_per_node),
            quadratic_cost_weight=weights.get(values.field, 0.0),
        )
    return DealtPhases(phases, plan.microbatches)


def _check_quadratic_cost_weights(quadratic_cost_weights: QuadraticCostWeights, plan: Plan, model: ModelConfig) -> None:
    """Raises DataError for a weight that would have no effect."""
    encoders = {encoder.field: encoder.name for encoder in model.encoders}
    for field, weight in quadratic_cost_weights:
        given = f"DataConfig.quadratic_cost_weights gives {field} the weight {weight}"
        if field not in encoders:
            fields = ", ".join(encoders) or "none, as it has no encoders"
            raise DataError(f"{given}, but no encoder of the model reads {field}; its fields: {fields}")
        unit = plan.unit_of(encoders[field])
        if not unit.phase_rows:
            raise DataError(
                f"{given}, but unit {unit.name} of the plan has no rows of its own over which items are dealt; give it "
                "UnitPlan.phase_rows, or leave the weight out"
            )


def row_values(model: ModelConfig, batch_spec: BatchSpec) -> dict[str, RowValues]:
    """Field and number of the values that a row of a global batch holds for each module, by module name."""
    backbone = model.backbone.name
    values = {backbone: RowValues("tokens", batch_spec[backbone]["tokens"].shape[1], 1)}
    for encoder in model.encoders:
        count = batch_spec[encoder.name][encoder.field].shape[1]
        values[encoder.name] = RowValues(encoder.field, count, encoder_format(encoder, count).values_per_token)
    for generator in model.generators:
        values[generator.name] = RowValues("images", batch_spec[generator.name]["images"].shape[1], 1)
    return values
