"""Post-balancing where only attention is padded, as in convolution-augmented transformers (OrchMLLM, Algorithm 5)."""

import numpy as np
from jaxtyping import Float, Int

from sharding.balancing.postbalancing import unpadded
from sharding.balancing.postbalancing.contiguous_partition import partition_minimizing_maximum
from sharding.balancing.postbalancing.greedy import largest_first

MAX_MOVES = 200


def convolutional_cost(lengths: Int[np.ndarray, " b"], quadratic_cost_weight: float) -> float:
    """Cost of a replica with b sequences of these lengths: their sum + w b m^2, where m is the longest."""
    return float(lengths.sum()) + quadratic_cost_weight * len(lengths) * float(lengths.max(initial=0)) ** 2


def balance_convolutional(
    lengths: Int[np.ndarray, " n"], replicas: int, quadratic_cost_weight: float
) -> Int[np.ndarray, " n"]:
    """The replica of every item, with a cost of the costliest replica that is close to the least possible.

    It is the better of two assignments, after single items have moved from the costliest replica to others for as long
    as that helps: Algorithm 5 with its undefined variables filled in (`separate_long_sequences`), which is good where
    the sum dominates, and segments of similar lengths under the least bound, which are good where the square does.

    Args:
        lengths: Of all replicas' items.
        replicas: Number of replicas to divide them among.
        quadratic_cost_weight: The paper's lambda, beta / alpha.

    Raises:
        ValueError: There is no replica, or the lengths cannot be balanced.
    """
    unpadded.check_lengths(lengths, replicas)
    order = np.argsort(-lengths, kind="stable")
    descending = lengths[order].astype(np.int64)
    initial = (
        separate_long_sequences(descending, replicas),
        _contiguous_segments(descending, replicas, quadratic_cost_weight),
    )
    refined = [_CostedAssignment(descending, start, replicas, quadratic_cost_weight).move_items() for start in initial]
    replica_of = np.empty(len(lengths), np.int64)
    replica_of[order] = min(refined, key=lambda assignment: assignment.costs.max(initial=0)).replica_of
    return replica_of


def separate_long_sequences(descending: Int[np.ndarray, " n"], replicas: int) -> Int[np.ndarray, " n"]:
    """Algorithm 5: long sequences in padded batches of their own, short ones where the sum is least.

    The paper leaves `b` and `len` undefined. Here the bound is the largest sum without padding, the padded length of a
    batch is its size times its first and longest sequence, and as many batches are begun as there are replicas.
    """
    _, sums = largest_first(descending, np.zeros(replicas, np.int64))
    bound, begin, batch = int(sums.max()), 0, 0
    replica_of = np.empty(len(descending), np.int64)
    while begin < len(descending) and batch < replicas:
        longest = int(descending[begin])
        end = begin + (bound // longest if longest else len(descending))
        replica_of[begin:end] = batch
        begin, batch = min(end, len(descending)), batch + 1
    sums = np.bincount(replica_of[:begin], weights=descending[:begin], minlength=replicas).astype(np.int64)
    replica_of[begin:], _ = largest_first(descending[begin:], sums)
    return replica_of


def _contiguous_segments(
    descending: Int[np.ndarray, " n"], replicas: int, quadratic_cost_weight: float
) -> Int[np.ndarray, " n"]:
    items = len(descending)
    lengths = descending.tolist()
    padding = quadratic_cost_weight * descending.astype(np.float64) ** 2
    listed_padding = padding.tolist()
    prefix_sums = np.append(0, np.cumsum(descending))
    listed_sums = prefix_sums.tolist()

    def segment_costs(begins: Int[np.ndarray, " s"], ends: Int[np.ndarray, " s"]) -> Float[np.ndarray, " s"]:
        return prefix_sums[ends] - prefix_sums[begins] + (ends - begins) * padding[begins]

    def longest_segment(begin: int, bound: float) -> int:
        end, padded = begin, listed_padding[begin]
        while end < items:  # all further items are no longer than the next, so at least as many of its cost fit
            room = bound - (listed_sums[end] - listed_sums[begin] + (end - begin) * padded)
            next_cost = lengths[end] + padded
            fitting = int(room // next_cost) if next_cost else items
            if fitting < 1:
                break
            end = min(end + fitting, items)
        return max(end, begin + 1)

    def cut(bound: float) -> list[int]:
        begins, begin = [], 0
        while begin < items:
            begins.append(begin)
            begin = longest_segment(begin, bound)
        return begins

    begins = partition_minimizing_maximum(items, replicas, segment_costs, cut)
    return np.repeat(np.arange(len(begins)), np.diff(begins, append=items))


class _CostedAssignment:
    """An assignment with the costs of its replicas."""

    def __init__(
        self,
        lengths: Int[np.ndarray, " n"],
        replica_of: Int[np.ndarray, " n"],
        replicas: int,
        quadratic_cost_weight: float,
    ) -> None:
        self.lengths, self.replica_of, self._weight = lengths, replica_of, quadratic_cost_weight
        self._sums = np.bincount(replica_of, weights=lengths, minlength=replicas)
        self._counts = np.bincount(replica_of, minlength=replicas)
        self._longest = np.zeros(replicas)
        np.maximum.at(self._longest, replica_of, lengths)

    @property
    def costs(self) -> Float[np.ndarray, " d"]:
        """Of every replica."""
        return self._sums + self._weight * self._counts * self._longest**2

    def move_items(self) -> "_CostedAssignment":
        """Moves single items out of the costliest replica, at most `MAX_MOVES`, while that lowers the largest cost."""
        for _ in range(MAX_MOVES):
            costs = self.costs
            costliest = int(costs.argmax())
            items = np.flatnonzero(self.replica_of == costliest)
            if len(items) < 2:
                break
            lengths = self.lengths[items].astype(np.float64)  # longest first, like all items
            longest_left = np.full(len(items), lengths[0])
            longest_left[0] = lengths[1]
            cost_left = self._sums[costliest] - lengths + self._weight * (len(items) - 1) * longest_left**2
            padded_lengths = (self._counts + 1) * np.maximum(self._longest, lengths[:, None]) ** 2
            cost_with = self._sums + lengths[:, None] + self._weight * padded_lengths  # [items, d]
            cost_with[:, costliest] = np.inf
            largest_after = np.maximum(cost_left[:, None], cost_with)
            item, target = divmod(int(largest_after.argmin()), len(costs))
            if largest_after[item, target] >= costs[costliest] * (1 - 1e-12):
                break
            self.replica_of[items[item]] = target
            self._sums[[costliest, target]] += (-lengths[item], lengths[item])
            self._counts[[costliest, target]] += (-1, 1)
            self._longest[costliest] = longest_left[item]
            self._longest[target] = max(self._longest[target], lengths[item])
        return self
