"""Post-balancing: the samples of a step are drawn first, whatever their sizes, and then dealt over its rows.

Other algorithms pick the samples of a row by size. Here a step takes the next samples of a random order, as many as its
rows hold, and deals them so that the rows have even sums of the first modality, the tokens (OrchMLLM, arXiv 2503.23830,
section 5.1).
"""

import dataclasses

import numpy as np
from jaxtyping import Float, Int

from data.errors import DataError
from data.packing.grouping.algorithms import GroupingAlgorithm
from data.packing.grouping.groups import Groups, concatenate_groups
from sharding.balancing.postbalancing.unpadded import balance_unpadded

_FEWER = 0.98  # share of the samples that is dealt next, where all of them do not fit
_LEVELS = 1 << 20  # to which sizes are rounded for balancing


@dataclasses.dataclass(frozen=True, kw_only=True)
class PostBalancedGroups(GroupingAlgorithm):
    """Steps of `rows` consecutive groups, each of the next samples in random order.

    Attributes:
        rows: Groups of a step.
    """

    rows: int

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise DataError(f"steps of {self.rows} groups; they need at least 1")

    def open_groups(self, fill):
        """The step that was dealt last, because it ended with the samples, not at its capacity."""
        return np.arange(max(len(fill) - 1, 0) // self.rows * self.rows, len(fill))

    def _group(self, sizes, capacity, samples, random):
        order = random.permutation(samples)
        steps: list[Groups] = []
        while len(order):
            count, group_of = self._deal_most(sizes[order] / capacity)
            by_group = np.argsort(group_of, kind="stable")
            lengths = np.bincount(group_of, minlength=self.rows)
            steps.append(Groups.from_lengths(order[:count][by_group], lengths[lengths > 0]))
            order = order[count:]
        return concatenate_groups(steps)

    def _deal_most(self, shares: Float[np.ndarray, "n k"]) -> tuple[int, Int[np.ndarray, " c"]]:
        """Number of the first samples that make a step, and the group of each.

        Args:
            shares: Sizes of the samples as shares of a group's capacity.
        """
        sums = np.cumsum(shares, axis=0)
        count = max(int((sums <= self.rows).all(axis=1).sum()), 1)
        while count > self.rows:
            group_of = self._deal(shares[:count])
            if group_of is not None:
                return count, group_of
            count = int(count * _FEWER)
        count = min(self.rows, len(shares))
        return count, np.arange(count)

    def _deal(self, shares: Float[np.ndarray, "n k"]) -> Int[np.ndarray, " n"] | None:
        """The group of each sample; None if the samples do not fit in this way.

        Groups are evened out without regard to their capacity. Where one then exceeds it, samples are dealt one by one,
        the largest first, to the least filled group that has room.
        """
        group_of = balance_unpadded(np.ceil(shares[:, 0] * _LEVELS).astype(np.int64), self.rows)
        sums = np.stack([np.bincount(group_of, column, self.rows) for column in shares.T], axis=1)
        return group_of if (sums <= 1).all() else self._deal_with_room(shares)

    def _deal_with_room(self, shares: Float[np.ndarray, "n k"]) -> Int[np.ndarray, " n"] | None:
        room = np.ones((self.rows, shares.shape[1]))
        group_of = np.empty(len(shares), np.int64)
        for sample in np.argsort(-shares[:, 0], kind="stable").tolist():
            has_room = (room >= shares[sample]).all(axis=1)
            if not has_room.any():
                return None
            group = int(np.where(has_room, room[:, 0], -1).argmax())
            room[group] -= shares[sample]
            group_of[sample] = group
        return group_of
