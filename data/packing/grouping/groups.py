"""Groups of samples, the result of every grouping algorithm, and samples that exceed the capacity of a group."""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

from data.errors import DataError


def _no_samples() -> Int[np.ndarray, " r"]:
    return np.zeros(0, np.int64)


@dataclasses.dataclass(frozen=True, eq=False)
class Groups:
    """Groups of samples, concatenated in one array.

    Attributes:
        members: int64[m], sample numbers; group g has members[starts[g]:starts[g + 1]].
        starts: int64[g + 1], strictly ascending from 0 to m, so that no group is empty.
        refused: int64[r], samples in no group because they exceed the capacity.
    """

    members: Int[np.ndarray, " m"]
    starts: Int[np.ndarray, " _"]
    refused: Int[np.ndarray, " r"] = dataclasses.field(default_factory=_no_samples)

    def __post_init__(self) -> None:
        starts = self.starts
        if not len(starts) or starts[0] != 0 or starts[-1] != len(self.members) or (np.diff(starts) < 1).any():
            raise ValueError(
                f"starts {starts} must ascend strictly from 0 to the number of members {len(self.members)}"
            )

    @classmethod
    def from_lengths(
        cls,
        members: Int[np.ndarray, " m"],
        lengths: Int[np.ndarray, " g"],
        refused: Int[np.ndarray, " r"] | None = None,
    ) -> "Groups":
        """Groups with these numbers of members."""
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return cls(members, starts, _no_samples() if refused is None else refused)

    @classmethod
    def from_lists(cls, lists: Sequence[Sequence[int]], refused: Sequence[int] = ()) -> "Groups":
        """Groups of listed samples."""
        members = np.array([member for group in lists for member in group], np.int64)
        return cls.from_lengths(members, np.array([len(group) for group in lists], np.int64), np.array(refused, int))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, group: int | np.integer) -> Int[np.ndarray, " members"]:
        """The members of one group; a negative index counts from the end."""
        if not -len(self) <= group < len(self):
            raise IndexError(f"group {group} of {len(self)}")
        group = int(group) % len(self)
        return self.members[self.starts[group] : self.starts[group + 1]]

    def __iter__(self) -> Iterator[Int[np.ndarray, " members"]]:
        bounds = self.starts.tolist()
        return (self.members[start:stop] for start, stop in zip(bounds, bounds[1:], strict=False))

    @property
    def lengths(self) -> Int[np.ndarray, " g"]:
        """Number of members of each group."""
        return np.diff(self.starts)

    def sums(self, sizes: Float[np.ndarray, "n k"]) -> Float[np.ndarray, "g k"]:
        """Sum of the units of each group, by modality, from the units of every sample."""
        return self._reduced(np.add, sizes)

    def largest(self, sizes: Float[np.ndarray, "n k"]) -> Float[np.ndarray, "g k"]:
        """Largest units within each group, by modality: the length to which a padded batch is padded."""
        return self._reduced(np.maximum, sizes)

    def _reduced(self, operation: np.ufunc, sizes: Float[np.ndarray, "n k"]) -> Float[np.ndarray, "g k"]:
        if not len(self):
            return np.zeros((0, sizes.shape[1]))
        columns = [operation.reduceat(column[self.members], self.starts[:-1]) for column in sizes.T]
        return np.stack(columns, axis=1) if columns else np.zeros((len(self), 0))

    def take(self, chosen: Int[np.ndarray, " h"]) -> "Groups":
        """The chosen groups in that order; refused samples stay refused."""
        lengths = self.lengths[chosen]
        within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return Groups.from_lengths(
            self.members[np.repeat(self.starts[chosen], lengths) + within], lengths, self.refused
        )


def concatenate_groups(parts: Sequence[Groups]) -> Groups:
    """The groups of several results in one, in order, with the refused samples of all."""
    return Groups.from_lengths(
        np.concatenate([_no_samples(), *(part.members for part in parts)]),
        np.concatenate([_no_samples(), *(part.lengths for part in parts)]),
        np.concatenate([_no_samples(), *(part.refused for part in parts)]),
    )


def exceeds_capacity(sizes: Float[np.ndarray, "n k"], capacity: Float[np.ndarray, " _"]) -> Bool[np.ndarray, " n"]:
    """Whether each sample has more units of any modality than a group holds.

    Raises:
        DataError: Sizes that are negative or not finite, or capacities that are not positive or of other modalities.
    """
    if sizes.shape[1] != len(capacity) or not len(capacity):
        raise DataError(f"sizes of {sizes.shape[1]} modalities, {len(capacity)} capacities; give one for each")
    if not (capacity > 0).all():
        raise DataError(f"capacity {capacity.tolist()}; it must be positive in every modality")
    too_large = np.zeros(len(sizes), bool)
    for modality, units in enumerate(sizes.T):
        if len(units) and not (units.min() >= 0 and units.max() < np.inf):  # false for NaN too
            first = int((~((units >= 0) & np.isfinite(units))).argmax())
            raise DataError(
                f"sample {first} has {units[first]} units of modality {modality}; sizes must be finite and not negative"
            )
        too_large |= units > capacity[modality]
    return too_large
