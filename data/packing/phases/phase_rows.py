"""The rows of a phase: their number and capacities, for a module whose items a plan deals over rows of its own."""

import dataclasses
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from data.errors import DataError


class RowValues(NamedTuple):
    """Number of a module's input values in a row of the global batch.

    Attributes:
        field: Unit in which capacities are counted: the field of an encoder's values, or tokens, or images.
        count: Values of a row.
        per_slot: Values of a token slot.
    """

    field: str
    count: int
    per_slot: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhaseRows:
    """The rows of one phase.

    A token slot is one place of its activations, which covers the values of one token, or one image.

    Attributes:
        module: The encoder or generator.
        unit: The unit of the plan that computes it.
        is_generator: Whether activations come to the phase, and do not leave it.
        rows: Rows of a microbatch.
        slots: Slots of a row of the global batch.
        capacities: Slots that a row of the phase may have, ascending.
        values: Unit in which the plan counts capacities: the field of the encoder's values, or images.
        values_per_slot: Values of a token slot.
        nodes: Nodes that divide its rows, and the rows of the global batch, in the same order; 1 where they do not.
        quadratic_cost_weight: w of the cost l + w l^2 of an item of l values, which rows share evenly; 0 for a linear
            cost.
    """

    module: str
    unit: str
    is_generator: bool
    rows: int
    slots: int
    capacities: tuple[int, ...]
    values: str
    values_per_slot: int
    nodes: int = 1
    quadratic_cost_weight: float = 0.0

    @property
    def table_name(self) -> str:
        """Name under which a batch keeps the table of the phase's items, as if it were a module."""
        return f"{self.module} items"

    @property
    def largest(self) -> int:
        """Slots of a row in the arrays of a batch."""
        return self.capacities[-1]

    @property
    def capacity_fractions(self) -> tuple[Fraction, ...]:
        """Each capacity as a fraction of a row in the arrays of a batch, ascending to 1."""
        return tuple(Fraction(capacity, self.largest) for capacity in self.capacities)

    def sufficient(self, rows: int) -> int:
        """Slots of a row that suffice for any microbatch of so many rows of the global batch, which fit as wholes."""
        return self.slots * -(-rows // self.rows)

    def layout(self, microbatches: int) -> list[int]:
        """Numbers that a batch keeps beside the table, to tell these rows from the rows of another plan."""
        return [microbatches, self.rows, self.slots, *self.capacities]

    def rows_of_step(self, microbatches: int) -> int:
        """Rows of all microbatches."""
        return microbatches * self.rows

    def values_in(self, capacities: Iterable[int | None]) -> int:
        """Values that the rows of a step hold, whose microbatches run with these capacities, given by number."""
        slots = sum(self.capacities[number] for number in capacities if number is not None)
        return self.rows * slots * self.values_per_slot

    def to_json(self) -> dict[str, Any]:
        """The rows as JSON values."""
        return dataclasses.asdict(self) | {"capacities": list(self.capacities)}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "PhaseRows":
        """The rows that `to_json` wrote.

        Raises:
            DataError: A number is not a whole one above 0, capacities do not ascend, or the quadratic cost weight is
                negative.
        """
        capacities = tuple(fields["capacities"])
        numbers = (*(fields[name] for name in ("rows", "slots", "values_per_slot", "nodes")), *capacities)
        are_positive = all(type(number) is int and number > 0 for number in numbers)
        if not are_positive or list(capacities) != sorted({*capacities}):
            raise DataError(f"rows of a phase have whole numbers above 0, capacities ascend; they are {dict(fields)}")
        weight = fields["quadratic_cost_weight"]
        if type(weight) not in (int, float) or not 0 <= weight < float("inf"):
            raise DataError(
                f"the square weight of a phase is {weight!r}; it must be a finite number that is not negative"
            )
        return cls(**{**fields, "capacities": capacities})
