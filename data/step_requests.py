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
from data.order_requests import OrderRequest
from data.pipeline import Recipe
from data.step_plans import Place
from data.wire import VERSION

STATUS = "status"
"""The action that tells, as JSON, the steps a producer served; a trainer asks for it to see whether it is there."""

MOST_AHEAD = 256
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

    identity: Mapping[str, Any]
    place: Place
    skip: int
    order: OrderRequest | None = None
    rows: tuple[int, ...] | None = None

    def to_bytes(self) -> bytes:
        """As JSON."""
        order = self.order and self.order.to_json()
        fields = {"identity": self.identity, "place": self.place.to_json(), "skip": self.skip}
        return json.dumps(fields | {"order": order, "rows": self.rows}).encode()

    @classmethod
    def from_bytes(cls, ticket: bytes) -> "StepRequest":
        """What `to_bytes` gave.

        Raises:
            DataError, PlanError: It is something else.
        """
        try:
            fields = json.loads(ticket)
            order = None if fields["order"] is None else OrderRequest.from_json(fields["order"])
            rows = None if fields["rows"] is None else tuple(fields["rows"])
            request = cls(fields["identity"], Place.from_json(fields["place"]), fields["skip"], order, rows)
            place = request.place
            numbers = (request.skip, place.position, place.window, place.taken, *place.carried, *(rows or ()))
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise DataError(f"this is no request for a step: {type(error).__name__}: {error}") from error
        if not all(type(number) is int and number >= 0 for number in numbers):
            raise DataError("this is no request for a step: places and rows are whole numbers, 0 or more")
        if request.skip > MOST_AHEAD or not isinstance(request.identity, dict):
            raise DataError(f"this is no request for a step: at most {MOST_AHEAD} behind a place, by an identity")
        return request


def full_identity(recipe: Recipe, config: DataConfig) -> dict[str, Any]:
    """All that decides what is in a batch: what decides its samples, and how they are encoded; as JSON gives it back.

    The order of rows is not in it: it comes with the request.
    """
    form = json.loads(json.dumps(dataclasses.asdict(recipe.catalogue.form)))
    tokenizer = recipe.catalogue.source.tokenizer.to_json().encode()
    return {
        **json.loads(json.dumps(recipe.identity)),
        **{name: getattr(config, name) for name in ("oversized", "language_weight", "generator_weight")},
        **{f"model.{name}": value for name, value in form.items()},
        "model.backbone": recipe.loader.model.backbone.name,
        "tokenizer": hashlib.sha256(tokenizer).hexdigest()[:16],
        "wire": VERSION,
    }
