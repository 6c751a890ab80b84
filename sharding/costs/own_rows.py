"""Loads of the replicas of a unit with rows of its own: its items, and what it computes for them, padding included.

`BatchCosts` computes the loads of such units here.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from sharding.specs.layers.layer import LoadColumn, Loads
from sharding.specs.layers.module_spec import ModuleSpec


class OwnRows(NamedTuple):
    """The number of a unit's own rows and their capacities, as in `UnitPlan`."""

    rows: int
    capacities: tuple[int, ...] = ()


def dealt_items(items: Float[np.ndarray, " m"], parts: int) -> Float[np.ndarray, "m i"]:
    """Returns the items of every share, which differ by at most one; the items of a mean row may be fractions."""
    least, rest = np.divmod(items[:, None], parts)
    return least + np.clip(rest - np.arange(parts), 0, 1)


def dealt_loads(microbatches: Loads, dp: int) -> Float[np.ndarray, "m i 4"]:
    """The loads of `dp` replicas over which the items of microbatches are dealt.

    Replicas get whole items, equally many but for one, and tokens and squared lengths in proportion.
    """
    items = microbatches[:, LoadColumn.ITEMS]
    share = np.where(items[:, None] > 0, dealt_items(items, dp) / np.maximum(items, 1e-9)[:, None], 1 / dp)
    return microbatches[:, None, :] * share[:, :, None]


def executed_loads(microbatches: Loads, own_rows: OwnRows, dp: int, module: ModuleSpec) -> Float[np.ndarray, "m i 4"]:
    """Loads that `dp` replicas compute: rows of the smallest capacity that holds the microbatch, alike on all of them.

    Padding counts as items of the microbatch's mean size would. A microbatch without an item is not computed; one that
    fits into no capacity, which a run refuses, counts as if there were one of its size. Without capacities the items
    alone count.
    """
    if not own_rows.capacities:
        return dealt_loads(microbatches, dp)
    values = item_values(microbatches, module)
    needed = fullest_row(microbatches, own_rows.rows, module)
    capacity = np.append(own_rows.capacities, np.inf)[_capacity_numbers(microbatches, own_rows, module)]
    held = np.where(np.isinf(capacity), needed, capacity) * own_rows.rows / dp
    replica = microbatches * (held / np.maximum(values, 1e-9) * (values > 0))[:, None]
    return np.repeat(replica[:, None], dp, axis=1)


def largest_over_needed(microbatches: Loads, own_rows: OwnRows, module: ModuleSpec) -> float:
    """How many times the largest capacity that these microbatches need the largest of all is; 1 without capacities."""
    if not own_rows.capacities:
        return 1.0
    numbers = _capacity_numbers(microbatches, own_rows, module)
    return own_rows.capacities[-1] / own_rows.capacities[min(int(numbers.max()), len(own_rows.capacities) - 1)]


def _capacity_numbers(microbatches: Loads, own_rows: OwnRows, module: ModuleSpec) -> Int[np.ndarray, " m"]:
    """The number of the smallest capacity that holds each microbatch; one more than there are if none does."""
    return np.searchsorted(own_rows.capacities, fullest_row(microbatches, own_rows.rows, module) * (1 - 1e-9))


def item_values(microbatches: Loads, module: ModuleSpec) -> Float[np.ndarray, " m"]:
    """Returns the size of the items of microbatches in the unit of capacities: patches, frames or images."""
    tokens, items = (microbatches[:, column] for column in (LoadColumn.TOKENS, LoadColumn.ITEMS))
    return tokens * module.values_per_position if tokens.any() else items


def fullest_row(microbatches: Loads, rows: int, module: ModuleSpec) -> Float[np.ndarray, " m"]:
    """Returns the values in the fullest row of every microbatch, if its items are of equal size."""
    items = microbatches[:, LoadColumn.ITEMS]
    fullest = dealt_items(items, rows)[:, 0] / np.maximum(items, 1e-9)
    return item_values(microbatches, module) * np.where(items > 0, fullest, 1 / rows)
