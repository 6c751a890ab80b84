"""Levels the sums of replicas by swapping items between heavy and light ones, all pairs of replicas at once."""

import dataclasses

import numpy as np
from jaxtyping import Bool, Int

from sharding.balancing.postbalancing.array_sorting import stable_order

MAX_TRIED_ITEMS = 16  # items of a heavy replica that one search tries, each against every item of a light one
MAX_ROUNDS = 120
PATIENCE = 24  # rounds in a row without a swap after which it ends
MAX_FAILED_PAIRS = 3000  # pairs without a swap since the largest sum fell after which it ends


@dataclasses.dataclass
class ReplicaItems:
    """The items of every replica; `level_by_swaps` changes them in place.

    Items are numbered by ascending length, so that sorting numbers sorts lengths. Rows are filled up with placeholders,
    items of length 0 with the lowest numbers: swapping an item for a placeholder moves the item.

    Attributes:
        lengths: Length of every item, ascending.
        items: Numbers of the items of every replica, ascending in each row.
        sums: Total length of every replica. It may include items that are not in `items` and stay where they are.
        placeholder_count: How many of the lowest numbers are placeholders.
        equal_counts: Whether a replica may have one placeholder at most, so that counts differ by at most one.
    """

    lengths: Int[np.ndarray, " t"]
    items: Int[np.ndarray, "d w"]
    sums: Int[np.ndarray, " d"]
    placeholder_count: int
    equal_counts: bool

    @classmethod
    def from_assignment(
        cls, ascending: Int[np.ndarray, " n"], replica_of: Int[np.ndarray, " n"], replicas: int, equal: bool
    ) -> "ReplicaItems":
        """Builds the items of every replica from an assignment; of very full replicas only the shortest items."""
        counts = np.bincount(replica_of, minlength=replicas)
        width = min(int(counts.max()), 2 * -(-len(ascending) // replicas) + 8)
        placeholders_of = np.maximum(width - counts, 0)
        is_placeholder = np.arange(width) < placeholders_of[:, None]
        placeholders = int(placeholders_of.sum())
        items = np.empty((replicas, width), np.int32)
        items[is_placeholder] = np.arange(placeholders)
        by_replica = stable_order(replica_of)
        if int(counts.max()) > width:
            begins = np.cumsum(counts) - counts
            by_replica = by_replica[np.arange(len(ascending)) - np.repeat(begins, counts) < width]
        items[~is_placeholder] = by_replica + placeholders
        sums = np.bincount(replica_of, weights=ascending, minlength=replicas).astype(np.int64)
        lengths = np.concatenate((np.zeros(placeholders, np.int64), ascending))
        return cls(lengths, items, sums, placeholders, equal)

    def updated_assignment(self, replica_of: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """The assignment from which this was made, after the swaps."""
        replicas, width = self.items.shape
        holder = np.concatenate((np.zeros(self.placeholder_count, np.int64), replica_of))
        holder[self.items.ravel()] = np.repeat(np.arange(replicas), width)
        return holder[self.placeholder_count :]

    def replace(
        self, replicas: Int[np.ndarray, " h"], items: Int[np.ndarray, "h w"], gained: Int[np.ndarray, " h"]
    ) -> None:
        """Gives replicas other items, whose lengths add up to `gained` more than before."""
        items.sort(axis=1)
        self.items[replicas] = items
        self.sums[replicas] += gained


def level_by_swaps(replica_items: ReplicaItems) -> None:
    """Swaps items until no sum is above what the longest item and the mean permit, or no swap helps any more.

    In every round the heaviest replica is paired with the lightest, the second heaviest with the second lightest and so
    on. Far from the goal a pair swaps many items (`_swap_many`), near it the two items that level the pair best
    (`_swap_one`). The largest sum never grows. After a round in which it has not fallen, the heaviest alone are tried.
    """
    bound = max(-(-int(replica_items.sums.sum()) // len(replica_items.sums)), int(replica_items.lengths[-1]))
    mean_length = int(replica_items.lengths.mean())
    shift = idle_rounds = failed_pairs = 0
    for round_index in range(MAX_ROUNDS):
        order = np.argsort(replica_items.sums)
        largest = replica_items.sums[order[-1]]
        excess = replica_items.sums[order] - bound
        heavy_count = int((excess > 0).sum())
        light_count = int((excess < 0).sum())
        if not heavy_count or not light_count or idle_rounds > PATIENCE or failed_pairs > MAX_FAILED_PAIRS:
            return
        far_count = 0 if idle_rounds else int((excess > mean_length).sum())
        if failed_pairs:
            heavy_count = int((2 * excess > excess[-1]).sum())
        pairs = min(far_count or heavy_count, light_count, len(order) // 2)
        heavy, light = order[::-1][:pairs], np.roll(order[:light_count], -shift)[:pairs]
        if far_count:
            swapped = _swap_many(replica_items, heavy, light)
        else:
            swapped = _swap_one(replica_items, heavy, light, round_index)
        shift = 0 if swapped == pairs else (shift + 1) % light_count  # other pairs next time, if some found no swap
        idle_rounds = 0 if swapped else idle_rounds + 1
        failed_pairs = failed_pairs + pairs - swapped if replica_items.sums.max() == largest else 0


def _swap_many(replica_items: ReplicaItems, heavy: Int[np.ndarray, " h"], light: Int[np.ndarray, " h"]) -> int:
    """Swaps long items of the heavy replicas for short ones of the light, as many as half the gap allows.

    The longest is set against the shortest, the second longest against the second shortest and so on: the differences
    fall, and a run of them, from the first that fits, is taken. Returns how many pairs of replicas swapped.
    """
    heavy_items, light_items = replica_items.items[heavy][:, ::-1], replica_items.items[light]
    differences = replica_items.lengths[heavy_items] - replica_items.lengths[light_items]
    half_gap = ((replica_items.sums[heavy] - replica_items.sums[light]) // 2)[:, None]
    taken = (differences > 0) & (differences <= half_gap)
    if replica_items.equal_counts:
        taken[_both_have_placeholders(replica_items, heavy, light), 0] = False
    taken &= np.cumsum(np.where(taken, differences, 0), axis=1) <= half_gap
    moved = np.where(taken, differences, 0).sum(axis=1)
    replica_items.replace(heavy, np.where(taken, light_items, heavy_items), -moved)
    replica_items.replace(light, np.where(taken, heavy_items, light_items), moved)
    return int((moved > 0).sum())


def _swap_one(
    replica_items: ReplicaItems, heavy: Int[np.ndarray, " h"], light: Int[np.ndarray, " h"], round_index: int
) -> int:
    """Makes in every pair the best levelling swap, if it lowers the heavier replica; returns how many pairs swapped."""
    heavy_items, light_items = replica_items.items[heavy], replica_items.items[light]
    stride = -(-heavy_items.shape[1] // MAX_TRIED_ITEMS)
    offset = round_index % stride
    tried = replica_items.lengths[heavy_items[:, offset::stride]]  # [h, q]
    light_lengths = replica_items.lengths[light_items]  # [h, w]
    gap = replica_items.sums[heavy] - replica_items.sums[light]
    beyond = 2 * int(replica_items.lengths[-1]) + int(gap.max()) + 1  # farther than any target is from any length
    if replica_items.equal_counts:
        light_lengths[_both_have_placeholders(replica_items, heavy, light), 0] = -beyond
    nearest = _nearest(light_lengths, tried - (gap // 2)[:, None], beyond)  # [h, q]
    moved = tried - np.take_along_axis(light_lengths, nearest, axis=1)
    best = np.abs(2 * moved - gap[:, None]).argmin(axis=1)
    pair = np.arange(len(heavy))
    moved = moved[pair, best]
    pair = pair[(moved > 0) & (moved < gap)]
    moved, heavy_column, light_column = moved[pair], best[pair] * stride + offset, nearest[pair, best[pair]]
    heavy_items, light_items, row = heavy_items[pair], light_items[pair], np.arange(len(pair))
    heavy_items[row, heavy_column], light_items[row, light_column] = (
        light_items[row, light_column],
        heavy_items[row, heavy_column],
    )
    replica_items.replace(heavy[pair], heavy_items, -moved)
    replica_items.replace(light[pair], light_items, moved)
    return len(pair)


def _nearest(rows: Int[np.ndarray, "h w"], targets: Int[np.ndarray, "h q"], beyond: int) -> Int[np.ndarray, "h q"]:
    """The column in each ascending row of the value nearest to each of its targets: one search for all rows."""
    width = rows.shape[1]
    row = np.arange(len(rows))[:, None]
    keys, target_keys = rows + row * (4 * beyond), targets + row * (4 * beyond)
    begin = row * width
    insertion = np.searchsorted(keys.ravel(), target_keys.ravel()).reshape(target_keys.shape)
    above, below = np.minimum(insertion, begin + width - 1), np.maximum(insertion - 1, begin)
    keys = keys.ravel()
    return np.where(keys[above] - target_keys < target_keys - keys[below], above, below) - begin


def _both_have_placeholders(
    replica_items: ReplicaItems, heavy: Int[np.ndarray, " h"], light: Int[np.ndarray, " h"]
) -> Bool[np.ndarray, " h"]:
    """Pairs in which both replicas have their one placeholder, so that neither may get the other's."""
    placeholders, items = replica_items.placeholder_count, replica_items.items
    return (items[heavy, 0] < placeholders) & (items[light, 0] < placeholders)
