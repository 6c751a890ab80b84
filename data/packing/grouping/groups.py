"""Which samples form a group: the answer of every grouping policy."""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float, Int


def _none() -> Int[np.ndarray, " r"]:
    return np.zeros(0, np.int64)


@dataclasses.dataclass(frozen=True, eq=False)
class Groups:
    """Groups of samples, one behind the other in one array.

    Attributes:
        members: int64[m], the samples' numbers; group g has those from `starts[g]` to before `starts[g + 1]`.
        starts: int64[g + 1], ascending from 0 to m; no group is empty.
        refused: int64[r], samples that are in no group because they exceed the capacity.
    """

    members: Int[np.ndarray, " m"]
    starts: Int[np.ndarray, " _"]
    refused: Int[np.ndarray, " r"] = dataclasses.field(default_factory=_none)

    def __post_init__(self) -> None:
        starts = self.starts
        if not len(starts) or starts[0] != 0 or starts[-1] != len(self.members) or (np.diff(starts) < 1).any():
            raise ValueError(f"starts {starts} must ascend from 0 to the {len(self.members)} members, no group empty")

    @classmethod
    def from_lengths(
        cls,
        members: Int[np.ndarray, " m"],
        lengths: Int[np.ndarray, " g"],
        refused: Int[np.ndarray, " r"] | None = None,
    ) -> "Groups":
        """Groups of so many members each."""
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return cls(members, starts, _none() if refused is None else refused)

    @classmethod
    def from_lists(cls, lists: Sequence[Sequence[int]], refused: Sequence[int] = ()) -> "Groups":
        """Groups of the listed samples."""
        members = np.array([member for group in lists for member in group], np.int64)
        return cls.from_lengths(members, np.array([len(group) for group in lists], np.int64), np.array(refused, int))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, group: int | np.integer) -> Int[np.ndarray, " members"]:
        """The members of one group; a negative number counts from the end."""
        if not -len(self) <= group < len(self):
            raise IndexError(f"group {group} of {len(self)}")
        group = int(group) % len(self)
        return self.members[self.starts[group] : self.starts[group + 1]]

    def __iter__(self) -> Iterator[Int[np.ndarray, " members"]]:
        bounds = self.starts.tolist()
        return (self.members[start:stop] for start, stop in zip(bounds, bounds[1:], strict=False))

    @property
    def lengths(self) -> Int[np.ndarray, " g"]:
        """Members of each group."""
        return np.diff(self.starts)

    def sums(self, sizes: Float[np.ndarray, "n k"]) -> Float[np.ndarray, "g k"]:
        """Units of each group, by modality, from those of every sample."""
        return self._reduced(np.add, sizes)

    def largest(self, sizes: Float[np.ndarray, "n k"]) -> Float[np.ndarray, "g k"]:
        """Units of each group's largest sample, by modality: the length to which a padded batch is filled."""
        return self._reduced(np.maximum, sizes)

    def _reduced(self, operation: np.ufunc, sizes: Float[np.ndarray, "n k"]) -> Float[np.ndarray, "g k"]:
        if not len(self):
            return np.zeros((0, sizes.shape[1]))
        columns = [operation.reduceat(column[self.members], self.starts[:-1]) for column in sizes.T]
        return np.stack(columns, axis=1) if columns else np.zeros((len(self), 0))

    def take(self, chosen: Int[np.ndarray, " h"]) -> "Groups":
        """Only the chosen groups, in that order; what was refused stays refused."""
        lengths = self.lengths[chosen]
        within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return Groups.from_lengths(
            self.members[np.repeat(self.starts[chosen], lengths) + within], lengths, self.refused
        )

    def are_whole(self, count: int) -> bool:
        """Whether each of `count` samples is in one group once, or refused once: nothing lost, nothing repeated."""
        found = np.sort(np.concatenate([self.members, self.refused]))
        return np.array_equal(found, np.arange(count))


def concatenate_groups(parts: Sequence[Groups]) -> Groups:
    """The groups of all parts, one part's behind the other's."""
    return Groups.from_lengths(
        np.concatenate([_none(), *(part.members for part in parts)]),
        np.concatenate([_none(), *(part.lengths for part in parts)]),
        np.concatenate([_none(), *(part.refused for part in parts)]),
    )
