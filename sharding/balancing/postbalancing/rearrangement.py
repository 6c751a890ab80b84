"""Rearrangements: the replica to which every item is sent, which balancing decides and an exchange carries out.

`benchmarks.dispatch` composes rearrangements; the trainer exchanges items by its own tables
(`sharding/runtime/exchange/`).
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from sharding.balancing.postbalancing.array_sorting import stable_order


@dataclasses.dataclass(frozen=True, eq=False)
class Rearrangement:
    """A permutation of the items of `d` replicas (OrchMLLM 5.1, the mapping of example j of batch i).

    Item `k` is the k-th of all items, ordered by replica and by position before the rearrangement.

    Attributes:
        before: How many items every replica has before.
        after: How many items every replica has afterwards.
        target: The replica to which every item is sent.
        target_position: The position of every item on that replica.
    """

    before: Int[np.ndarray, " d"]
    after: Int[np.ndarray, " d"]
    target: Int[np.ndarray, " n"]
    target_position: Int[np.ndarray, " n"]

    def __post_init__(self) -> None:
        """Raises ValueError unless every position of every replica is filled by one item."""
        if len(self.before) != len(self.after) or min(self.before.min(initial=0), self.after.min(initial=0)) < 0:
            raise ValueError(f"counts before {self.before} and after {self.after} are not of the same replicas")
        items = int(self.before.sum())
        if not items == int(self.after.sum()) == len(self.target):
            raise ValueError(
                f"{items} items, {self.after.sum()} positions and {len(self.target)} targets must be equal"
            )
        if not items:
            return
        if self.target.min() < 0 or self.target.max() >= self.replicas:
            raise ValueError(f"targets from {self.target.min()} to {self.target.max()} with {self.replicas} replicas")
        outside = (self.target_position < 0) | (self.target_position >= self.after[self.target])
        if not outside.any():
            filled = np.zeros(items, bool)
            filled[self.new_index] = True
            if filled.all():
                return
        twice = np.bincount(self.new_index[~outside], minlength=items) > 1
        for wrong, problem in ((outside, "is out of range"), (twice[self.new_index % items], "is given twice")):
            if wrong.any():
                item = int(wrong.argmax())
                raise ValueError(f"item {item}: position {self.target_position[item]} of {self.target[item]} {problem}")

    @classmethod
    def identity(cls, counts: Int[np.ndarray, " d"]) -> "Rearrangement":
        """The rearrangement that leaves every item where it is."""
        return cls.from_targets(np.repeat(np.arange(len(counts)), counts), counts)

    @classmethod
    def from_targets(
        cls, target: Int[np.ndarray, " n"], before: Int[np.ndarray, " d"], order: Int[np.ndarray, " n"] | None = None
    ) -> "Rearrangement":
        """Builds a rearrangement from the replica to which every item is sent, as the balancing functions return it.

        Args:
            target: Target of every item, ordered by replica and position.
            before: How many items every replica has now.
            order: All items in the order that they shall have within their targets; by default their own.
        """
        by_target = stable_order(target) if order is None else order[stable_order(target[order])]
        after = np.bincount(target, minlength=len(before))
        position = np.empty(len(target), np.int64)
        position[by_target] = _positions(after)
        return cls(before, after, target, position)

    @property
    def replicas(self) -> int:
        """Number of replicas."""
        return len(self.before)

    @property
    def source(self) -> Int[np.ndarray, " n"]:
        """The replica of every item before the rearrangement."""
        return np.repeat(np.arange(self.replicas), self.before)

    @property
    def source_position(self) -> Int[np.ndarray, " n"]:
        """The position of every item on its replica before the rearrangement."""
        return _positions(self.before)

    @functools.cached_property
    def new_index(self) -> Int[np.ndarray, " n"]:
        """The number of every item in the order by replica and position afterwards: `new[new_index] = old`."""
        index = (np.cumsum(self.after) - self.after)[self.target]
        index += self.target_position
        return index

    def inverse(self) -> "Rearrangement":
        """The rearrangement that brings every item back."""
        index = self.new_index
        target, position = np.empty_like(index), np.empty_like(index)
        target[index], position[index] = self.source, self.source_position
        return Rearrangement(self.after, self.before, target, position)

    def compose(self, other: "Rearrangement") -> "Rearrangement":
        """This rearrangement and then the other, as one (section 6, rearrangement composition).

        `encoder.inverse().compose(backbone)` brings encoder outputs from where the encoder ran to where the backbone
        runs.

        Raises:
            ValueError: The other does not begin with the counts that this one leaves.
        """
        if not np.array_equal(self.after, other.before):
            raise ValueError(
                f"the first leaves {self.after} items at each replica, the other begins with {other.before}"
            )
        index = self.new_index
        return Rearrangement(self.before, other.after, other.target[index], other.target_position[index])

    def apply(self, items: Sequence[Sequence[Any]]) -> list[list[Any]]:
        """Returns the items of every replica after the rearrangement, given the items before it."""
        if [len(row) for row in items] != self.before.tolist():
            raise ValueError(
                f"the replicas have {[len(row) for row in items]} items; {self.before.tolist()} are rearranged"
            )
        moved: list[Any] = [None] * len(self.target)
        all_items = (item for row in items for item in row)
        for index, item in zip(self.new_index.tolist(), all_items, strict=True):
            moved[index] = item
        ends = np.cumsum(self.after).tolist()
        return [moved[end - count : end] for end, count in zip(ends, self.after.tolist(), strict=True)]


def _positions(counts: Int[np.ndarray, " d"]) -> Int[np.ndarray, " n"]:
    """Returns the position of every item within its replica: 0, 1, ... for each."""
    return np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
