"""Post-balancing where only attention is padded, as in convolution-augmented transformers (OrchMLLM, Algorithm 5)."""

import numpy as np
from jaxtyping import Float, Int

from sharding.balancing.postbalancing import unpadded
from sharding.balancing.postbalancing.contiguous_partition import partition_minimizing_maximum
from sharding.balancing.postbalancing.greedy import largest_first

MOVES = 200


def convolutional_cost(lengths: Int[np.ndarray, " b"], square_weight: float) -> float:
    """Of an instance with sequences of these lengths: their sum + w b m^2, with m the longest."""
    return float(lengths.sum()) + square_weight * len(lengths) * float(lengths.max(initial=0)) ** 2


def balance_convolutional(
    lengths: Int[np.ndarray, " n"], instances: int, square_weight: float
) -> Int[np.ndarray, " n"]:
    """The instance of every item, so that the costliest instance costs as little as can easily be.

    The better of two, after single items have moved from the costliest instance to others for as long as that helps:
    Algorithm 5 as it is meant (`long_apart`), which is good where the sum counts, and runs of like lengths under the
    least bound, which are good where the square does.

    Args:
        lengths: Of all instances' items.
        instances: Among how many to divide them.
        square_weight: The paper's lambda, beta / alpha.

    Raises:
        ValueError: No instance, or lengths that cannot be balanced.
    """
    unpadded.check_lengths(lengths, instances)
    order = np.argsort(-lengths, kind="stable")
    descending = lengths[order].astype(np.int64)
    starts = separate_long_sequences(descending, instances), _runs(descending, instances, square_weight)
    refined = [_Batches(descending, start, instances, square_weight).move() for start in starts]
    instance = np.empty(len(lengths), np.int64)
    instance[order] = min(refined, key=lambda batches: batches.costs.max(initial=0)).instance
    return instance


def separate_long_sequences(descending: Int[np.ndarray, " n"], instances: int) -> Int[np.ndarray, " n"]:
    """Algorithm 5 as it is meant: long sequences in padded batches of their own, short ones where the sum is least.

    The print leaves `b` and `len` undefined. The bound is the largest sum without padding; a batch's padded length is
    its size times its first sequence, the longest; and as many batches are begun as there are instances.
    """
    _, sums = largest_first(descending, np.zeros(instances, np.int64))
    bound, begin, batch = int(sums.max()), 0, 0
    instance = np.empty(len(descending), np.int64)
    while begin < len(descending) and batch < instances:
        longest = int(descending[begin])
        end = begin + (bound // longest if longest else len(descending))
        instance[begin:end] = batch
        begin, batch = min(end, len(descending)), batch + 1
    sums = np.bincount(instance[:begin], weights=descending[:begin], minlength=instances).astype(np.int64)
    instance[begin:], _ = largest_first(descending[begin:], sums)
    return instance


def _runs(descending: Int[np.ndarray, " n"], instances: int, square_weight: float) -> Int[np.ndarray, " n"]:
    items = len(descending)
    each = descending.tolist()
    padding = (square_weight * descending.astype(np.float64) ** 2).tolist()
    total = [0, *np.cumsum(descending).tolist()]

    def run_cost(begin: int, end: int) -> float:
        return total[end] - total[begin] + (end - begin) * padding[begin]

    def fill(begin: int, bound: float) -> int:
        end = begin
        while end < items:  # all further items are no longer than the next, so as many of its cost fit for certain
            one = each[end] + padding[begin]
            more = int((bound - run_cost(begin, end)) // one) if one else items
            if more < 1:
                break
            end = min(end + more, items)
        return max(end, begin + 1)

    begins = partition_minimizing_maximum(items, instances, run_cost, fill)
    return np.repeat(np.arange(len(begins)), np.diff([*begins, items]))


class _Batches:
    """An assignment with what its instances cost."""

    def __init__(
        self, lengths: Int[np.ndarray, " n"], instance: Int[np.ndarray, " n"], instances: int, square_weight: float
    ) -> None:
        self.lengths, self.instance, self._weight = lengths, instance, square_weight
        self._sums = np.bincount(instance, weights=lengths, minlength=instances)
        self._counts = np.bincount(instance, minlength=instances)
        self._longest = np.zeros(instances)
        np.maximum.at(self._longest, instance, lengths)

    @property
    def costs(self) -> Float[np.ndarray, " d"]:
        """Of every instance."""
        return self._sums + self._weight * self._counts * self._longest**2

    def move(self) -> "_Batches":
        """Moves single items out of the costliest instance, `MOVES` at most, while that lowers the largest cost."""
        for _ in range(MOVES):
            costs = self.costs
            costliest = int(costs.argmax())
            mine = np.flatnonzero(self.instance == costliest)
            if len(mine) < 2:
                break
            moved = self.lengths[mine].astype(np.float64)  # longest first, like all items
            longest = np.full(len(mine), moved[0])
            longest[0] = moved[1]
            here = self._sums[costliest] - moved + self._weight * (len(mine) - 1) * longest**2
            padded = (self._counts + 1) * np.maximum(self._longest, moved[:, None]) ** 2
            there = self._sums + moved[:, None] + self._weight * padded
            there[:, costliest] = np.inf
            after = np.maximum(here[:, None], there)
            item, target = divmod(int(after.argmin()), len(costs))
            if after[item, target] >= costs[costliest] * (1 - 1e-12):
                break
            self.instance[mine[item]] = target
            self._sums[[costliest, target]] += (-moved[item], moved[item])
            self._counts[[costliest, target]] += (-1, 1)
            self._longest[costliest] = longest[item]
            self._longest[target] = max(self._longest[target], moved[item])
        return self
