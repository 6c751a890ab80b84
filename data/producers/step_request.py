"""Step requests: a trainer asks a producer for the step that comes a number of steps after a planner state.

A step is a function of the configuration, the state and the number of steps, so any producer of the same configuration
can make any step, in any order.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from data.data_config import DataConfig
from data.errors import DataError
from data.packing.dealt_phases import NO_PHASES, DealtPhases
from data.packing.phases.needed_rows import ALL_ROWS, NeededRows
from data.packing.pipeline import BatchPipeline
from data.packing.row_order import RowOrderRequest
from data.packing.rows.row_planner import PlannerState
from data.producers.wire import WIRE_VERSION

STATUS_ACTION = "status"
"""The Flight action that returns the number of steps served, as JSON; trainers probe producers with it."""

MAX_STEPS_AHEAD = 256
"""Most steps between the state and the requested step: it bounds the planning that one request can cause."""


_DECIDING = ("oversized", "language_weight", "generator_weight", "quadratic_cost_weights")  # beside the steps' samples


@dataclasses.dataclass(frozen=True)
class StepRequest:
    """A request for one step.

    Attributes:
        fingerprint: The trainer's configuration (`batch_fingerprint`).
        planner_state: State after a step that the trainer has received, or the initial one.
        skip: Number of steps between the state and the requested step.
        row_order: Order in which to put its rows; None to keep them as they are planned.
        needed: Rows that the trainer needs; the others stay empty.
        phases: Modules whose items are dealt over rows of their own.
    """

    fingerprint: Mapping[str, Any]
    planner_state: PlannerState
    skip: int
    row_order: RowOrderRequest | None = None
    needed: NeededRows = ALL_ROWS
    phases: DealtPhases = NO_PHASES

    def to_bytes(self) -> bytes:
        """The request as JSON."""
        fields = {
            "fingerprint": self.fingerprint,
            "planner_state": self.planner_state.to_json(),
            "skip": self.skip,
            "row_order": self.row_order and self.row_order.to_json(),
            "needed": self.needed.to_json(),
            "phases": self.phases.to_json(),
        }
        return json.dumps(fields).encode()

    @classmethod
    def from_bytes(cls, ticket: bytes) -> "StepRequest":
        """The request that `to_bytes` wrote.

        Raises:
            DataError: The bytes are no request.
            PlanError: The plan of its row order is invalid.
        """
        try:
            fields = json.loads(ticket)
            row_order = fields["row_order"]
            request = cls(
                fields["fingerprint"],
                PlannerState.from_json(fields["planner_state"]),
                fields["skip"],
                None if row_order is None else RowOrderRequest.from_json(row_order),
                NeededRows.from_json(fields["needed"]),
                DealtPhases.from_json(fields["phases"]),
            )
            state = request.planner_state
            numbers = (
                request.skip,
                state.window_start,
                state.window_number,
                state.steps_taken,
                *state.carried_samples,
            )
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise DataError(f"not a step request: {type(error).__name__}: {error}") from error
        if not all(type(number) is int and number >= 0 for number in numbers):
            raise DataError("not a step request: states are whole numbers, 0 or more")
        if request.skip > MAX_STEPS_AHEAD:
            raise DataError(f"not a step request: it skips {request.skip} steps, more than {MAX_STEPS_AHEAD}")
        if not isinstance(request.fingerprint, dict):
            raise DataError(f"not a step request: its fingerprint is {request.fingerprint!r}")
        return request


def batch_fingerprint(pipeline: BatchPipeline, config: DataConfig) -> dict[str, Any]:
    """Everything that decides the content of a batch: its samples and how they are encoded, as JSON values.

    It leaves out the order of rows, which comes with the request.
    """
    sample_format = pipeline.sample_index.sample_format
    formats = {
        **sample_format.encoder_formats,
        "target_images": sample_format.target_images,
        "backbone_tokens": sample_format.tokens,
    }
    tokenizer = pipeline.sample_index.dataset.tokenizer.to_json().encode()
    fingerprint = {
        **pipeline.fingerprint,
        **{name: getattr(config, name) for name in _DECIDING},
        **{f"model.{name}": dataclasses.asdict(value) for name, value in formats.items() if value},
        "model.backbone": pipeline.loader.model.backbone.name,
        "tokenizer": hashlib.sha256(tokenizer).hexdigest()[:16],
        "wire": WIRE_VERSION,
    }
    return json.loads(json.dumps(fingerprint))  # as a trainer sends it: tuples are lists
