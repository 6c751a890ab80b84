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


class DealtShares(NamedTuple):
    """The items of m microbatches, dealt over i shares of at most three sizes each.

    Attributes:
        items: The three sizes: one item more than the least, a fraction of an item more, and the least. Only items of
            mean rows are fractions. A size that no share has repeats the second.
        kind: Which of the three sizes each share has: 0, 1 or 2.
    """

    items: Float[np.ndarray, "m 3"]
    kind: Int[np.ndarray, "m i"]


def dealt_shares(items: Float[np.ndarray, " m"], parts: int) -> DealtShares:
    """Returns the items of every share of each microbatch, which differ by at most one."""
    least, rest = np.divmod(items, parts)
    more = np.floor(rest)  # number of shares with one item more; the next share has the fraction
    by_kind = least[:, None] + np.stack([np.ones(len(items)), rest - more, np.zeros(len(items))], axis=1)
    for kind, is_missing in ((0, more == 0), (2, more == parts - 1)):
        by_kind[is_missing, kind] = by_kind[is_missing, 1]
    return DealtShares(by_kind, 1 + np.sign(np.arange(parts) - more[:, None]).astype(int))


def dealt_loads(microbatches: Loads, dp: int) -> tuple[Float[np.ndarray, "m 3 4"], Int[np.ndarray, "m i"]]:
    """The loads of `dp` replicas over which items are dealt: of each size of a share, and the size that each has.

    Replicas get whole items, equally many but for one, and tokens and squared lengths in proportion.
    """
    items = microbatches[:, LoadColumn.ITEMS]
    dealt = dealt_shares(items, dp)
    share = np.where(items[:, None] > 0, dealt.items / np.maximum(items, 1e-9)[:, None], 1 / dp)
    return microbatches[:, None, :] * share[:, :, None], dealt.kind


def executed_loads(microbatches: Loads, own_rows: OwnRows, dp: int, module: ModuleSpec) -> Float[np.ndarray, "m 4"]:
    """Loads that each of `dp` replicas computes: rows of the smallest capacity that holds the microbatch.

    Padding counts as items of the microbatch's mean size would. A microbatch without an item is not computed; one that
    fits into no capacity, which a run refuses, counts as if there were one of its size.

    Args:
        microbatches: Loads of microbatches.
        own_rows: The unit's own rows, with capacities.
        dp: Number of replicas.
        module: The module.
    """
    values = item_values(microbatches, module)
    needed = fullest_row(microbatches, own_rows.rows, module)
    capacity = np.append(own_rows.capacities, np.inf)[capacity_numbers(microbatches, own_rows, module)]
    held = np.where(np.isinf(capacity), needed, capacity) * own_rows.rows / dp
    return microbatches * (held / np.maximum(values, 1e-9) * (values > 0))[:, None]


def largest_over_needed(microbatches: Loads, own_rows: OwnRows, module: ModuleSpec) -> float:
    """How many times the largest capacity that these microbatches need the largest of all is; 1 without capacities."""
    if not own_rows.capacities:
        return 1.0
    numbers = capacity_numbers(microbatches, own_rows, module)
    return own_rows.capacities[-1] / own_rows.capacities[min(int(numbers.max()), len(own_rows.capacities) - 1)]


def capacity_numbers(microbatches: Loads, own_rows: OwnRows, module: ModuleSpec) -> Int[np.ndarray, " m"]:
    """The number of the smallest capacity that holds each microbatch; one more than there are if none does.

    Args:
        microbatches: Loads of microbatches.
        own_rows: The rows of the unit, with capacities.
        module: The module.
    """
    return np.searchsorted(own_rows.capacities, fullest_row(microbatches, own_rows.rows, module) * (1 - 1e-9))


def item_values(microbatches: Loads, module: ModuleSpec) -> Float[np.ndarray, " m"]:
    """Returns the size of the items of microbatches in the unit of capacities: patches, frames or images."""
    tokens, items = (microbatches[:, column] for column in (LoadColumn.TOKENS, LoadColumn.ITEMS))
    return tokens * module.values_per_position if tokens.any() else items


def fullest_row(microbatches: Loads, rows: int, module: ModuleSpec) -> Float[np.ndarray, " m"]:
    """Returns the values in the fullest row of every microbatch, if its items are of equal size."""
    items = microbatches[:, LoadColumn.ITEMS]
    least, rest = np.divmod(items, rows)
    fullest = (least + np.minimum(rest, 1)) / np.maximum(items, 1e-9)
    return item_values(microbatches, module) * np.where(items > 0, fullest, 1 / rows)
