"""Where every item goes, as data: what a balancing decides and an exchange between instances carries out."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int


@dataclasses.dataclass(frozen=True, eq=False)
class Rearrangement:
    """A permutation of the items of `d` instances (OrchMLLM 5.1, the mapping of example j of batch i).

    Item `k` is the k-th when all instances' items are counted through, instance by instance, in their old places.

    Attributes:
        before: How many items every instance has.
        after: How many it has afterwards.
        target: The instance to which every item goes.
        target_place: Its place there.
    """

    before: Int[np.ndarray, " d"]
    after: Int[np.ndarray, " d"]
    target: Int[np.ndarray, " n"]
    target_position: Int[np.ndarray, " n"]

    def __post_init__(self) -> None:
        """Raises ValueError unless every place of every instance is filled by one item."""
        if len(self.before) != len(self.after) or min(self.before.min(initial=0), self.after.min(initial=0)) < 0:
            raise ValueError(f"counts before {self.before} and after {self.after} are not of the same instances")
        items = int(self.before.sum())
        if not items == int(self.after.sum()) == len(self.target):
            raise ValueError(f"{items} items, {self.after.sum()} places and {len(self.target)} targets must be equal")
        if not items:
            return
        if self.target.min() < 0 or self.target.max() >= self.replicas:
            raise ValueError(f"targets from {self.target.min()} to {self.target.max()} with {self.replicas} instances")
        outside = (self.target_position < 0) | (self.target_position >= self.after[self.target])
        twice = np.bincount(self.new_index[~outside], minlength=items) > 1
        for wrong, what in ((outside, "lies outside"), (twice[self.new_index % items], "is given twice")):
            if wrong.any():
                item = int(wrong.argmax())
                raise ValueError(f"item {item}: place {self.target_position[item]} of {self.target[item]} {what}")

    @classmethod
    def identity(cls, counts: Int[np.ndarray, " d"]) -> "Rearrangement":
        """Every item stays where it is."""
        return cls.from_targets(np.repeat(np.arange(len(counts)), counts), counts)

    @classmethod
    def from_targets(
        cls, target: Int[np.ndarray, " n"], before: Int[np.ndarray, " d"], order: Int[np.ndarray, " n"] | None = None
    ) -> "Rearrangement":
        """From the instance to which every item goes, as the balancing functions return it.

        Args:
            target: Of every item, the items counted through instance by instance.
            before: How many items every instance has now.
            order: All items in the order in which they lie within their targets; as they are counted by default.
        """
        if order is None:
            order = np.arange(len(target))
        by_target = order[np.argsort(target[order], kind="stable")]
        after = np.bincount(target, minlength=len(before))
        place = np.empty(len(target), np.int64)
        place[by_target] = _places(after)
        return cls(before, after, target, place)

    @property
    def replicas(self) -> int:
        """How many."""
        return len(self.before)

    @property
    def source(self) -> Int[np.ndarray, " n"]:
        """The instance of every item before."""
        return np.repeat(np.arange(self.replicas), self.before)

    @property
    def source_position(self) -> Int[np.ndarray, " n"]:
        """Its place there."""
        return _places(self.before)

    @property
    def new_index(self) -> Int[np.ndarray, " n"]:
        """Every item's number when the items are counted through afterwards: `new[new_index] = old`."""
        return (np.cumsum(self.after) - self.after)[self.target] + self.target_position

    def inverse(self) -> "Rearrangement":
        """What brings every item back."""
        index = self.new_index
        target, place = np.empty_like(index), np.empty_like(index)
        target[index], place[index] = self.source, self.source_position
        return Rearrangement(self.after, self.before, target, place)

    def compose(self, other: "Rearrangement") -> "Rearrangement":
        """Both, one after the other, as one (section 6, rearrangement composition).

        Encoder outputs go from where the encoder ran to where the backbone runs by
        `encoder.inverse().then(backbone)`.

        Raises:
            ValueError: The other does not begin with the counts with which this one ends.
        """
        if not np.array_equal(self.after, other.before):
            raise ValueError(f"one ends with {self.after} items an instance, the other begins with {other.before}")
        index = self.new_index
        return Rearrangement(self.before, other.after, other.target[index], other.target_position[index])

    def apply(self, held: Sequence[Sequence[Any]]) -> list[list[Any]]:
        """The lists of every instance's items afterwards."""
        if [len(items) for items in held] != self.before.tolist():
            raise ValueError(f"{[len(items) for items in held]} items, where {self.before.tolist()} are rearranged")
        moved: list[Any] = [None] * len(self.target)
        everything = (item for items in held for item in items)
        for index, item in zip(self.new_index.tolist(), everything, strict=True):
            moved[index] = item
        ends = np.cumsum(self.after).tolist()
        return [moved[end - count : end] for end, count in zip(ends, self.after.tolist(), strict=True)]

    def send_counts(self) -> Int[np.ndarray, "d d"]:
        """How many items go from each instance (row) to each (column)."""
        pairs = np.bincount(self.source * self.replicas + self.target, minlength=self.replicas**2)
        return pairs.reshape(self.replicas, self.replicas)

    def send_order(self, instance: int) -> Int[np.ndarray, " b"]:
        """The places of an instance's items in the order in which it sends them: by target, then by place there."""
        begin = int(self.before[:instance].sum())
        mine = slice(begin, begin + int(self.before[instance]))
        return np.lexsort((self.target_position[mine], self.target[mine]))

    def receive_positions(self, instance: int) -> Int[np.ndarray, " b"]:
        """Where what an instance receives belongs, in the order of arrival: by source, then as each source sends."""
        arriving = np.flatnonzero(self.target == instance)
        order = np.lexsort((self.target_position[arriving], self.source[arriving]))
        return self.target_position[arriving][order]


def _places(counts: Int[np.ndarray, " d"]) -> Int[np.ndarray, " n"]:
    """0, 1, ... in every instance."""
    return np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
