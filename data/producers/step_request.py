"""What a trainer asks of a producer: the step so many behind a place, of a configuration that both have.

A step is a function of these three, so that any producer of the configuration can make any step, in any order.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from data.data_config import DataConfig
from data.errors import DataError
from data.packing.pipeline import BatchRecipe
from data.packing.row_order_request import RowOrderRequest
from data.packing.step_planner import PlannerState
from data.producers.wire import WIRE_VERSION

STATUS_ACTION = "status"
"""The action that tells, as JSON, the steps a producer served; a trainer asks for it to see whether it is there."""

MAX_STEPS_AHEAD = 256
"""Steps behind its place that may be asked for: a bound on what one request can make a producer plan."""


@dataclasses.dataclass(frozen=True)
class StepRequest:
    """A step.

    Attributes:
        identity: Of the trainer's configuration (`full_identity`).
        place: Where planning stood behind a step that the trainer has had; or the beginning.
        skip: Steps between the place and the one that is asked for.
        order: In which to put its rows; None for as they are planned.
        rows: Those that the trainer needs, in that order; the others stay empty. None for all.
    """

    fingerprint: Mapping[str, Any]
    planner_state: PlannerState
    skip: int
    row_order: RowOrderRequest | None = None
    rows: tuple[int, ...] | None = None

    def to_bytes(self) -> bytes:
        """As JSON."""
        order = self.row_order and self.row_order.to_json()
        fields = {"fingerprint": self.fingerprint, "planner_state": self.planner_state.to_json(), "skip": self.skip}
        return json.dumps(fields | {"row_order": order, "rows": self.rows}).encode()

    @classmethod
    def from_bytes(cls, ticket: bytes) -> "StepRequest":
        """What `to_bytes` gave.

        Raises:
            DataError, PlanError: It is something else.
        """
        try:
            fields = json.loads(ticket)
            order = None if fields["row_order"] is None else RowOrderRequest.from_json(fields["row_order"])
            rows = None if fields["rows"] is None else tuple(fields["rows"])
            request = cls(fields["fingerprint"], PlannerState.from_json(fields["planner_state"]), fields["skip"], order, rows)
            place = request.planner_state
            numbers = (
                request.skip,
                place.window_start,
                place.window_number,
                place.steps_taken,
                *place.carried_samples,
                *(rows or ()),
            )
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise DataError(f"this is no request for a step: {type(error).__name__}: {error}") from error
        if not all(type(number) is int and number >= 0 for number in numbers):
            raise DataError("this is no request for a step: places and rows are whole numbers, 0 or more")
        if request.skip > MAX_STEPS_AHEAD or not isinstance(request.fingerprint, dict):
            raise DataError(f"this is no request for a step: at most {MAX_STEPS_AHEAD} behind a place, by an identity")
        return request


def batch_fingerprint(recipe: BatchRecipe, config: DataConfig) -> dict[str, Any]:
    """All that decides what is in a batch: what decides its samples, and how they are encoded; as JSON gives it back.

    The order of rows is not in it: it comes with the request.
    """
    form = json.loads(json.dumps(dataclasses.asdict(recipe.sample_index.sample_format)))
    tokenizer = recipe.sample_index.dataset.tokenizer.to_json().encode()
    return {
        **json.loads(json.dumps(recipe.fingerprint)),
        **{name: getattr(config, name) for name in ("oversized", "language_weight", "generator_weight")},
        **{f"model.{name}": value for name, value in form.items()},
        "model.backbone": recipe.loader.model.backbone.name,
        "tokenizer": hashlib.sha256(tokenizer).hexdigest()[:16],
        "wire": WIRE_VERSION,
    }
