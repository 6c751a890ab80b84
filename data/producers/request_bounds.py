"""Bounds of a request's size and of every number in it, by which a producer refuses requests.

All follow from the configuration that trainer and producer hash alike, so a request cannot make a producer allocate or
plan more than a trainer of this configuration needs.
"""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from configs.common.shown_text import shortened
from data.data_config import DataConfig
from data.errors import DataError
from data.packing.batch_spec import global_batch_spec
from data.packing.dealt_phases import RowValues, row_values
from data.packing.phases.needed_rows import NeededRows
from data.packing.phases.phase_rows import PhaseRows
from data.packing.pipeline import BatchPipeline
from data.packing.row_order import MAX_PROFILE_BYTES, RowOrderRequest
from data.packing.rows.row_planner import PlannerState
from data.producers.step_request import StepRequest, batch_fingerprint
from sharding.plans.text.bounds import name_fault

MAX_ROWS_RATIO = 64
"""Most rows of a phase for each row of the global batch: how many times as many replicas an encoder may have."""

MAX_SLOTS_RATIO = 16
"""Most slots that the rows of a phase may hold for each that the global batch holds; all others are padding."""

MAX_PLAN_BYTES = 1 << 20
"""Most bytes of a ticket beside its fingerprint, its profile and its lists of numbers: mostly the bytes of a plan."""

_NUMBER_BYTES = 22  # of a number in a list, with comma and space


@dataclasses.dataclass(frozen=True, kw_only=True)
class RequestBounds:
    """The bounds of one configuration.

    Attributes:
        rows: Rows of a step.
        carried: Most samples that a planner carries into a window.
        window: Most samples of a window.
        values: Input values of each encoder and generator in a row of the global batch, by module name.
        generators: Names of the generators.
        quadratic_cost_weights: By field, `DataConfig.quadratic_cost_weights`.
        ticket_bytes: Most bytes of a ticket.
    """

    rows: int
    carried: int
    window: int
    values: Mapping[str, RowValues]
    generators: frozenset[str]
    quadratic_cost_weights: Mapping[str, float]
    ticket_bytes: int

    @classmethod
    def of(cls, pipeline: BatchPipeline, config: DataConfig) -> "RequestBounds":
        """The bounds of a pipeline and its configuration."""
        planner, model = pipeline.planner, pipeline.loader.model
        rows = planner.rows_per_step
        carried = 2 * rows * planner.capacity.samples  # a step of rows waits, and fewer than one are left over
        values = row_values(model, global_batch_spec(config, model).arrays)
        del values[model.backbone.name]
        numbers = carried + rows * (1 + MAX_ROWS_RATIO * len(values))
        fingerprint = json.dumps(batch_fingerprint(pipeline, config))
        return cls(
            rows=rows,
            carried=carried,
            window=planner.window_rule.most,
            values=values,
            generators=frozenset(generator.name for generator in model.generators),
            quadratic_cost_weights=dict(config.quadratic_cost_weights),
            ticket_bytes=MAX_PLAN_BYTES + MAX_PROFILE_BYTES + len(fingerprint) + _NUMBER_BYTES * numbers,
        )

    def check_size(self, ticket: bytes) -> None:
        """Raises DataError for a ticket that is larger than any of this configuration, before it is parsed."""
        if len(ticket) > self.ticket_bytes:
            raise DataError(f"not a step request: it has {len(ticket)} bytes, more than {self.ticket_bytes}")

    def check(self, request: StepRequest) -> None:
        """Raises DataError for a request with a number that no trainer of this configuration sends."""
        self._check_state(request.planner_state)
        microbatches = request.phases.microbatches
        if self.rows % microbatches:
            raise DataError(f"{microbatches} microbatches do not divide steps of {self.rows} rows")
        for phase in request.phases.phases.values():
            self._check_phase(phase, self.rows // microbatches)
        self._check_needed(request.needed, request)
        if request.row_order is not None:
            self._check_plan(request.row_order)

    def _check_state(self, state: PlannerState) -> None:
        if state.window_number > state.window_start:
            raise DataError(f"position {state.window_start} of the data cannot be in window {state.window_number}")
        if len(state.carried_samples) > self.carried:
            raise DataError(f"{len(state.carried_samples)} samples are carried, of at most {self.carried}")
        if state.steps_taken > self.window + self.carried:
            raise DataError(f"{state.steps_taken} steps of a window are taken, of at most {self.window + self.carried}")

    def _check_phase(self, phase: PhaseRows, rows: int) -> None:
        """Refuses the rows of a phase that are others than a plan of this model may have.

        Args:
            phase: The rows.
            rows: Rows of a microbatch of the global batch.
        """
        module = shortened(repr(phase.module))
        values = self.values.get(phase.module)
        if values is None or values.field != phase.values:
            raise DataError(f"there is no module {module} of {shortened(repr(phase.values))} to give rows of its own")
        if type(phase.unit) is not str or name_fault(phase.unit):
            raise DataError(f"the unit of {module} has no name")
        expected: dict[str, Any] = {
            "is_generator": phase.module in self.generators,
            "slots": values.count // values.per_slot,
            "values_per_slot": values.per_slot,
            "quadratic_cost_weight": self.quadratic_cost_weights.get(values.field, 0.0),
        }
        for name, value in expected.items():
            if getattr(phase, name) != value:
                raise DataError(f"the rows of {module} have another {name} than the configuration gives them")
        most = {
            "rows": (phase.rows, MAX_ROWS_RATIO * rows),
            "slots": (phase.rows * phase.largest, MAX_SLOTS_RATIO * phase.slots * rows),
        }
        for name, (number, bound) in most.items():
            if number > bound:
                raise DataError(f"a microbatch of {module} has {number} {name}, of at most {bound}")
        if phase.rows % phase.nodes or rows % phase.nodes:
            raise DataError(f"{phase.nodes} nodes do not divide the {phase.rows} rows of {module} and {rows}")

    def _check_needed(self, needed: NeededRows, request: StepRequest) -> None:
        phases = request.phases.phases
        if unknown := needed.phases.keys() - phases.keys():
            names = shortened(", ".join(sorted(unknown)))
            raise DataError(f"there are rows of {names}, which has none of its own")
        counts = {module: phase.rows_of_step(request.phases.microbatches) for module, phase in phases.items()}
        for module, numbers in {"the batch": needed.batch or (), **needed.phases}.items():
            count = counts.get(module, self.rows)
            if max(numbers, default=-1) >= count:
                raise DataError(f"there is no row {max(numbers)} in steps of {count} rows of {module}")
            if len(numbers) > count or list(numbers) != sorted({*numbers}):
                raise DataError(f"the {len(numbers)} needed rows of {module} do not ascend")

    def _check_plan(self, row_order: RowOrderRequest) -> None:
        plan = row_order.plan
        if self.rows % plan.microbatches:
            raise DataError(f"{plan.microbatches} microbatches of the plan do not divide steps of {self.rows} rows")
        for unit in plan.units:
            if unit.phase_rows > (most := MAX_ROWS_RATIO * self.rows // plan.microbatches):
                raise DataError(f"unit {unit.name} of the plan has {unit.phase_rows} rows, of at most {most}")
