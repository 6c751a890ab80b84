"""Post-balancing: the samples of a step are drawn first, nearly whatever their sizes, and then dealt over its rows.

Other algorithms pick the samples of a row by size. Here a step takes the next samples of a random order, as many as its
rows hold, and deals them so that the rows have even sums of the first modality, the tokens (OrchMLLM, arXiv 2503.23830,
section 5.1). The paper's rows have no capacity. Here they have one, and a run of random samples leaves room in it.
Therefore a step also sees some samples that follow: of the run, a sample that does not fit, or a small one in whose
place a larger one fills the row, waits for the next step.
"""

import dataclasses

import numpy as np
from jaxtyping import Float, Int

from data.errors import DataError
from data.packing.grouping.algorithms import GroupingAlgorithm
from data.packing.grouping.groups import Groups, concatenate_groups
from sharding.balancing.postbalancing.within_capacity import NO_ROW, balance_if_fitting, balance_within_capacity

AHEAD_SHARE, AHEAD_LEAST = 0.25, 16
"""How many samples a step sees beyond the run that its rows hold: this share of the run, and at least so many."""
_FULL = 0.995  # share of the capacity of a step from which a run of samples needs no others


@dataclasses.dataclass(frozen=True, kw_only=True)
class PostBalancedGroups(GroupingAlgorithm):
    """Steps of `rows` consecutive groups, each of the next samples in random order, but for those that do not fit.

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
            due = _longest_run(sizes[order], self.rows * capacity)
            seen = order[: due + max(AHEAD_LEAST, int(AHEAD_SHARE * due))]
            group_of = self._deal(sizes[seen], capacity, due)
            by_group = np.argsort(group_of, kind="stable")[(group_of == NO_ROW).sum() :]
            lengths = np.bincount(group_of[by_group], minlength=self.rows)
            steps.append(Groups.from_lengths(seen[by_group], lengths[lengths > 0]))
            order = np.concatenate([seen[group_of == NO_ROW], order[len(seen) :]])
        return concatenate_groups(steps)

    def _deal(
        self, sizes: Float[np.ndarray, "n k"], capacity: Float[np.ndarray, " k"], due: int
    ) -> Int[np.ndarray, " n"]:
        """The group of each sample that a step sees; `NO_ROW` for those that it leaves.

        Args:
            sizes: Sizes of the samples, in their order.
            capacity: Capacity of a group.
            due: The first samples, which fit into the step if its groups are taken together.
        """
        if len(sizes) <= self.rows:
            return np.arange(len(sizes))
        if due > self.rows and (sizes[:due].sum(axis=0) >= _FULL * self.rows * capacity).any():
            even = balance_if_fitting(sizes[:due], capacity, self.rows)
            if even is not None:
                return np.concatenate([even, np.full(len(sizes) - due, NO_ROW)])
        return balance_within_capacity(sizes, capacity, self.rows, due)


def _longest_run(sizes: Float[np.ndarray, "n k"], capacity: Float[np.ndarray, " k"]) -> int:
    """How many of the first samples fit into a capacity; at least one."""
    return max(int((np.cumsum(sizes, axis=0) <= capacity).all(axis=1).sum()), 1)
