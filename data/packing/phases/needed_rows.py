"""Which rows of a step a process needs: the rows that its devices compute, of the global batch and of each phase.

An engine derives them from the plan; the batch loader decodes only samples of these rows.
"""

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

from data.errors import DataError


@dataclasses.dataclass(frozen=True)
class NeededRows:
    """Rows of a step that a process needs; all others stay empty there.

    Attributes:
        batch: Numbers of rows of the global batch, ascending; None for all.
        phases: By module, numbers of its phase rows, counted through all microbatches, ascending; all rows of a module
            that is missing.
    """

    batch: tuple[int, ...] | None = None
    phases: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The numbers as JSON values."""
        return {
            "batch": None if self.batch is None else list(self.batch),
            "phases": {module: list(rows) for module, rows in self.phases.items()},
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "NeededRows":
        """The numbers that `to_json` wrote.

        Raises:
            DataError: They are no whole numbers, or below 0.
        """
        batch, phases = fields["batch"], dict(fields["phases"])
        for number in itertools.chain(batch or (), *phases.values()):
            if type(number) is not int or number < 0:
                raise DataError(f"rows are whole numbers, 0 or more; one is {number!r}")
        return cls(None if batch is None else tuple(batch), {module: tuple(rows) for module, rows in phases.items()})

    def of_batch(self, rows: int) -> frozenset[int]:
        """Numbers of the needed rows of a global batch of so many rows."""
        return frozenset(range(rows)).intersection(range(rows) if self.batch is None else self.batch)


ALL_ROWS = NeededRows()
"""All rows: the need of a process that computes all modules, or that is alone."""
