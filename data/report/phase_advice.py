"""Suggested capacities of rows of its own for a module, from what microbatches of packed samples need."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from data.packing.grouping.groups import Groups
from sharding.balancing.capacities import least_padding_capacities, needed_capacity


@dataclasses.dataclass(frozen=True)
class SuggestedPhaseCapacities:
    """Capacities of the rows of a module, where each microbatch has as many of them as of the global batch.

    Attributes:
        rows: Rows of a microbatch.
        without_items: Share of the microbatches without an item of the module, which it does not compute.
        capacities: The capacities with the least padding, at most 1, 2, ... of them.
        padding: For each of these, the share of padding in what is computed.
    """

    rows: int
    without_items: float
    capacities: tuple[tuple[int, ...], ...]
    padding: tuple[float, ...]


def suggest_phase_capacities(
    groups: Groups, lengths: Sequence[Sequence[int]], rows: int, count: int, multiple: int
) -> SuggestedPhaseCapacities | None:
    """Capacities for the items of one module; None where the samples fill no microbatch, or have no items.

    Args:
        groups: Samples of every row, in the order of training.
        lengths: Lengths of the items of every sample.
        rows: Rows of a microbatch.
        count: Most capacities.
        multiple: Capacities are whole multiples of this.
    """
    of_rows = [[length for sample in group for length in lengths[sample]] for group in groups]
    microbatches = [
        np.array([length for row in of_rows[first : first + rows] for length in row], np.int64)
        for first in range(0, len(of_rows) - rows + 1, rows)
    ]
    needs = np.array([needed_capacity(each, rows) for each in microbatches], np.int64)
    if not needs.any():
        return None
    total = sum(int(each.sum()) for each in microbatches)
    choices = dict.fromkeys(least_padding_capacities(needs.tolist(), most, multiple) for most in range(1, count + 1))
    return SuggestedPhaseCapacities(
        rows,
        float((needs == 0).mean()),
        tuple(choices),
        tuple(1 - total / (rows * _computed(needs, chosen)) for chosen in choices),
    )


def _computed(needs: Int[np.ndarray, " m"], capacities: tuple[int, ...]) -> int:
    return int(np.array(capacities)[np.searchsorted(capacities, needs[needs > 0])].sum())
