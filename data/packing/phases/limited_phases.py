"""Whether the items of every microbatch of a planned step fit into the rows of a plan's phases, if rows are reordered.

A reordering that gives microbatches other rows asks this before items are dealt (`data.packing.row_order`).
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from data.samples.sample import SampleSizes
from data.samples.sample_format import SampleFormat
from sharding.balancing.dealing import DealingError, deal_items
from sharding.plans.plan import Plan


@dataclasses.dataclass(frozen=True)
class LimitedPhase:
    """A phase whose rows have capacities, so that they may not hold every microbatch.

    Attributes:
        field: Field of the encoder's values; None for a generator, whose items are images.
        rows: Rows of a microbatch.
        largest: Most values, or images, that a row holds.
    """

    field: str | None
    rows: int
    largest: int

    def fits(
        self, rows: Sequence[Sequence[SampleSizes]], microbatch_of_row: Int[np.ndarray, " n"], microbatches: int
    ) -> bool:
        """Whether the items of every microbatch can be dealt.

        Where the mean of the rows and the longest item fit together, any dealing by sums succeeds (Graham 1969); for
        the other microbatches the items are dealt.
        """
        by_row = [self._lengths(row) for row in rows]
        lengths = np.array([length for row_lengths in by_row for length in row_lengths], np.int64)
        microbatch = np.repeat(microbatch_of_row, [len(row_lengths) for row_lengths in by_row])
        longest = np.zeros(microbatches)
        np.maximum.at(longest, microbatch, lengths)
        most = np.bincount(microbatch, lengths, minlength=microbatches) / self.rows + longest * (1 - 1 / self.rows)
        return all(self._can_deal(lengths[microbatch == number]) for number in np.flatnonzero(most > self.largest))

    def _lengths(self, row: Sequence[SampleSizes]) -> list[int]:
        if self.field is None:
            return [1] * sum(sizes.images for sizes in row)
        return [length for sizes in row for length in sizes.items[self.field]]

    def _can_deal(self, lengths: Int[np.ndarray, " k"]) -> bool:
        try:
            deal_items(lengths, self.rows, (self.largest,))
        except DealingError:
            return False
        return True


def limited_phases(plan: Plan, sample_format: SampleFormat) -> tuple[LimitedPhase, ...]:
    """The phases of a plan whose units have capacities; rows without any hold every microbatch."""
    field_of: dict[str, str | None] = {encoder.module: encoder.field for encoder in sample_format.encoders}
    if sample_format.target_images:
        field_of[sample_format.target_images.module] = None
    return tuple(
        LimitedPhase(field_of[module], unit.phase_rows, unit.capacities[-1])
        for unit in plan.units
        if unit.capacities
        for module in unit.modules
    )
