"""Levelling the sums of instances by exchanging items between heavy and light ones, all pairs at once."""

import dataclasses

import numpy as np
from jaxtyping import Bool, Int

COLUMNS = 16  # items of a heavy instance that one search tries; each against every item of a light one
ROUNDS = 120
PATIENCE = 24  # rounds in a row without an exchange before it gives up


@dataclasses.dataclass
class ReplicaItems:
    """What every instance holds; `level` changes it in place.

    Items are numbered by ascending length, so that sorting a row of numbers sorts its lengths. Rows are filled up with
    empty places, which are items of length 0 with the lowest numbers: taking one for an item is moving the item.

    Attributes:
        lengths: Of every item, ascending.
        items: Numbers of the items in every instance, ascending in each row.
        sums: Total length in every instance. It may hold more than `items` shows, which then stays where it is.
        empty: How many of the lowest numbers are empty places.
        equal: An instance may hold one empty place at most, so that counts differ by at most one.
    """

    lengths: Int[np.ndarray, " t"]
    items: Int[np.ndarray, "d w"]
    sums: Int[np.ndarray, " d"]
    placeholder_count: int
    equal_counts: bool

    @classmethod
    def from_assignment(
        cls, ascending: Int[np.ndarray, " n"], instance: Int[np.ndarray, " n"], instances: int, equal: bool
    ) -> "ReplicaItems":
        """From an assignment; of an instance with far more items than the mean only the smallest take part."""
        counts = np.bincount(instance, minlength=instances)
        width = min(int(counts.max()), 2 * -(-len(ascending) // instances) + 8)
        by_instance = np.argsort(instance, kind="stable")
        place = np.arange(len(ascending)) - np.repeat(np.cumsum(counts) - counts, counts)
        movable = place < width
        empty = instances * width - int(movable.sum())
        items = np.full((instances, width), -1, np.int32)
        items[instance[by_instance][movable], place[movable]] = by_instance[movable] + empty
        items[items < 0] = np.arange(empty)
        items.sort(axis=1)
        sums = np.bincount(instance, weights=ascending, minlength=instances).astype(np.int64)
        return cls(np.concatenate((np.zeros(empty, np.int64), ascending)), items, sums, empty, equal)

    def updated_assignment(self, instance: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """The assignment from which this was made, as it is now."""
        instance = instance.copy()
        real = self.items >= self.placeholder_count
        instance[self.items[real] - self.placeholder_count] = np.nonzero(real)[0]
        return instance

    def replace(
        self, instances: Int[np.ndarray, " h"], items: Int[np.ndarray, "h w"], moved: Int[np.ndarray, " h"]
    ) -> None:
        """Gives instances other items, whose lengths add up to `moved` more than what they had."""
        items.sort(axis=1)
        self.items[instances] = items
        self.sums[instances] += moved


def level_by_swaps(held: ReplicaItems) -> None:
    """Exchanges items until no sum is above what the largest item and the mean permit, or nothing helps any more.

    In every round the heaviest instance meets the lightest, the second heaviest the second lightest and so on. Far
    from the goal a pair exchanges many items (`_exchange_many`), near it the one pair of items that levels the two best
    (`_exchange_one`). The largest sum never grows.
    """
    bound = max(-(-int(held.sums.sum()) // len(held.sums)), int(held.lengths[-1]))
    coarse = int(held.lengths.mean())
    met, idle = 0, 0
    for turn in range(ROUNDS):
        order = np.argsort(held.sums)
        over = held.sums[order] - bound
        heavies = int((over > 0).sum())
        lights = int((over < 0).sum())
        if not heavies or not lights or idle > PATIENCE:
            return
        far = 0 if idle else int((over > coarse).sum())
        pairs = min(far or heavies, lights, len(order) // 2)
        heavy, light = order[::-1][:pairs], np.roll(order[:lights], -met)[:pairs]
        moved = _exchange_many(held, heavy, light) if far else _exchange_one(held, heavy, light, turn)
        met = 0 if moved == pairs else (met + 1) % lights  # others next time, if some found nothing
        idle = 0 if moved else idle + 1


def _exchange_many(held: ReplicaItems, heavy: Int[np.ndarray, " h"], light: Int[np.ndarray, " h"]) -> int:
    """The heavy's large items for the light's small ones, as many as half the gap allows; how many pairs did.

    Largest is set against smallest, second largest against second smallest: the differences fall, and a run of them,
    from the first that fits, is taken.
    """
    mine, theirs = held.items[heavy][:, ::-1], held.items[light]
    moved = held.lengths[mine] - held.lengths[theirs]
    half = ((held.sums[heavy] - held.sums[light]) // 2)[:, None]
    taken = (moved > 0) & (moved <= half)
    if held.equal_counts:
        taken[_both_have_room(held, heavy, light), 0] = False
    taken &= np.cumsum(np.where(taken, moved, 0), axis=1) <= half
    total = np.where(taken, moved, 0).sum(axis=1)
    held.replace(heavy, np.where(taken, theirs, mine), -total)
    held.replace(light, np.where(taken, mine, theirs), total)
    return int((total > 0).sum())


def _exchange_one(held: ReplicaItems, heavy: Int[np.ndarray, " h"], light: Int[np.ndarray, " h"], turn: int) -> int:
    """In every pair the exchange of two items that levels it best, if it lowers the heavier; how many pairs did."""
    mine, theirs = held.items[heavy], held.items[light]
    step = -(-mine.shape[1] // COLUMNS)
    tried = held.lengths[mine[:, turn % step :: step]]
    lengths = held.lengths[theirs]
    gap = held.sums[heavy] - held.sums[light]
    beyond = 2 * int(held.lengths[-1]) + int(gap.max()) + 1  # farther than any wish is from any item
    if held.equal_counts:
        lengths[_both_have_room(held, heavy, light), 0] = -beyond
    nearest = _nearest(lengths, tried - (gap // 2)[:, None], beyond)
    moved = tried - np.take_along_axis(lengths, nearest, axis=1)
    best = np.abs(2 * moved - gap[:, None]).argmin(axis=1)
    row = np.arange(len(heavy))
    moved = moved[row, best]
    row = row[(moved > 0) & (moved < gap)]
    moved, give, take = moved[row], best[row] * step + turn % step, nearest[row, best[row]]
    mine, theirs, here = mine[row], theirs[row], np.arange(len(row))
    mine[here, give], theirs[here, take] = theirs[here, take], mine[here, give]
    held.replace(heavy[row], mine, -moved)
    held.replace(light[row], theirs, moved)
    return len(row)


def _nearest(rows: Int[np.ndarray, "h w"], wishes: Int[np.ndarray, "h q"], beyond: int) -> Int[np.ndarray, "h q"]:
    """The place in each ascending row of what is nearest to each of its wishes: one search for all rows together."""
    width = rows.shape[1]
    begin = np.arange(len(rows))[:, None]
    keys, wanted = rows + begin * (4 * beyond), wishes + begin * (4 * beyond)
    begin = begin * width
    found = np.searchsorted(keys.ravel(), wanted.ravel()).reshape(wanted.shape)
    above, below = np.minimum(found, begin + width - 1), np.maximum(found - 1, begin)
    keys = keys.ravel()
    return np.where(keys[above] - wanted < wanted - keys[below], above, below) - begin


def _both_have_room(
    held: ReplicaItems, heavy: Int[np.ndarray, " h"], light: Int[np.ndarray, " h"]
) -> Bool[np.ndarray, " h"]:
    """Pairs in which both have their empty place, so that neither may get the other's."""
    return (held.items[heavy, 0] < held.placeholder_count) & (held.items[light, 0] < held.placeholder_count)
