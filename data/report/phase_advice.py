"""Suggested capacities of phase rows for a module, from the needs of microbatches of packed samples.

They come with the cost that dealing items by quadratic cost (`DataConfig.quadratic_cost_weights`) saves in the
costliest rows.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from data.packing.grouping.groups import Groups
from sharding.balancing.capacities import least_padding_capacities, needed_capacity
from sharding.balancing.dealing import deal_items, largest_cost


@dataclasses.dataclass(frozen=True)
class SuggestedPhaseCapacities:
    """Capacities of the rows of a module, where each microbatch has as many of them as of the global batch.

    Attributes:
        rows: Rows of a microbatch.
        without_items: Share of the microbatches without an item of the module, which it does not compute.
        capacities: The capacities with the least padding, at most 1, 2, ... of them.
        padding: For each number of capacities, the share of padding in the computed values.
        quadratic_cost_weight: Weight of the module's field in `DataConfig.quadratic_cost_weights`, from its FLOPs; 0
            without attention.
        cost_saved: For each of the capacities, the share of the costliest rows' cost, summed over microbatches, that
            dealing with this weight saves.
    """

    rows: int
    without_items: float
    capacities: tuple[tuple[int, ...], ...]
    padding: tuple[float, ...]
    quadratic_cost_weight: float
    cost_saved: tuple[float, ...]


def suggest_phase_capacities(
    groups: Groups, lengths: Sequence[Sequence[int]], rows: int, count: int, multiple: int, quadratic_cost_weight: float
) -> SuggestedPhaseCapacities | None:
    """Capacities for the items of one module; None where the samples fill no microbatch, or have no items.

    Args:
        groups: Samples of every row, in the order of training.
        lengths: Lengths of the items of every sample.
        rows: Rows of a microbatch.
        count: Most capacities.
        multiple: Capacities are whole multiples of this.
        quadratic_cost_weight: w of the cost l + w l^2 of an item
            (`data.report.dataset_statistics.quadratic_cost_weights`).
    """
    item_rows = [[length for sample in group for length in lengths[sample]] for group in groups]
    microbatches = [
        np.array([length for row in item_rows[first : first + rows] for length in row], np.int64)
        for first in range(0, len(item_rows) - rows + 1, rows)
    ]
    needs = np.array([needed_capacity(lengths_held, rows) for lengths_held in microbatches], np.int64)
    if not needs.any():
        return None
    total = sum(int(lengths_held.sum()) for lengths_held in microbatches)
    choices = dict.fromkeys(least_padding_capacities(needs.tolist(), most, multiple) for most in range(1, count + 1))
    return SuggestedPhaseCapacities(
        rows=rows,
        without_items=float((needs == 0).mean()),
        capacities=tuple(choices),
        padding=tuple(1 - total / (rows * _computed(needs, chosen)) for chosen in choices),
        quadratic_cost_weight=quadratic_cost_weight,
        cost_saved=tuple(_cost_saved(microbatches, rows, chosen, quadratic_cost_weight) for chosen in choices),
    )


def _cost_saved(
    microbatches: Sequence[Int[np.ndarray, " _"]], rows: int, capacities: tuple[int, ...], quadratic_cost_weight: float
) -> float:
    by_length, by_cost = (
        sum(
            largest_cost(lengths, deal_items(lengths, rows, capacities, weight).rows, quadratic_cost_weight)
            for lengths in microbatches
        )
        for weight in (0.0, quadratic_cost_weight)
    )
    return 1 - by_cost / by_length


def _computed(needs: Int[np.ndarray, " m"], capacities: tuple[int, ...]) -> int:
    return int(np.array(capacities)[np.searchsorted(capacities, needs[needs > 0])].sum())
