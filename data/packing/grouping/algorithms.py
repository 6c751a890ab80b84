"""Grouping algorithms: samples with sizes in any number of modalities are put into groups, and none is lost.

A grouping policy (`grouping_policies.py`) has one of them; the step planner calls it for every window of samples.
"""

import abc
import dataclasses
from typing import Literal

import numpy as np
from jaxtyping import Float, Int

from data.errors import DataError
from data.packing.grouping.bin_packing import as_columns, first_fit_decreasing, next_fit
from data.packing.grouping.groups import Groups, concatenate_groups, exceeds_capacity
from data.packing.grouping.isf import sample_and_filter

MIN_FILL = 0.5
"""Groups that use less of their capacity are open to the samples of the next window."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupingAlgorithm(abc.ABC):
    """Forms groups within a capacity.

    Attributes:
        oversized: What happens to a sample that exceeds the capacity: `alone` makes it a group of its own, `refuse`
            lists it in `Groups.refused`.
    """

    oversized: Literal["alone", "refuse"] = "alone"

    def __call__(
        self, sizes: Float[np.ndarray, "n k"], capacity: Float[np.ndarray, " k"], random: np.random.Generator
    ) -> Groups:
        """Groups that contain every sample once, unless it is refused; oversized samples come last.

        Args:
            sizes: Units of every sample, by modality.
            capacity: Capacity of a group, by modality; may be infinite.
            random: Source of random choices.

        Raises:
            DataError: Invalid sizes or capacities, or settings for another number of modalities.
        """
        too_large = exceeds_capacity(sizes, capacity)
        groups = self._group(sizes, capacity, np.flatnonzero(~too_large), random)
        oversized = np.flatnonzero(too_large)
        if self.oversized == "refuse":
            return dataclasses.replace(groups, refused=oversized)
        return concatenate_groups([groups, Groups.from_lengths(oversized, np.ones_like(oversized))])

    def open_groups(self, fill: Float[np.ndarray, " g"]) -> Int[np.ndarray, " o"]:
        """Groups of a window that samples of the next one may fill further, the emptiest first.

        Args:
            fill: Largest share of the capacity, over modalities, that each group uses, in the order of the groups.
        """
        order = np.argsort(fill, kind="stable")
        return order[fill[order] < MIN_FILL]

    @abc.abstractmethod
    def _group(
        self,
        sizes: Float[np.ndarray, "n k"],
        capacity: Float[np.ndarray, " k"],
        samples: Int[np.ndarray, " m"],
        random: np.random.Generator,
    ) -> Groups:
        """Groups of the given samples, none of which is oversized."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class IterativeSamplingAndFiltering(GroupingAlgorithm):
    """OmniBal's ISF (section 4.1); samples that no round accepts are sampled once more and not filtered.

    Attributes:
        threshold: Q', by modality: a group that reaches it in any modality is accepted.
        rounds: T, the largest number of rounds.
    """

    threshold: tuple[float, ...]
    rounds: int = 10

    def _group(self, sizes, capacity, samples, random):
        if len(self.threshold) != len(capacity):
            raise DataError(f"threshold {self.threshold} for {len(capacity)} modalities; give one for each")
        columns = as_columns(sizes, capacity)
        accepted, remaining = sample_and_filter(
            columns, capacity, np.array(self.threshold), self.rounds, samples, random
        )
        remaining = random.permutation(remaining)
        return concatenate_groups(
            [accepted, Groups.from_lengths(remaining, next_fit(columns, capacity, remaining).lengths)]
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class FirstFit(GroupingAlgorithm):
    """First-fit decreasing packing; the groups are in random order."""

    def _group(self, sizes, capacity, samples, random):
        groups = first_fit_decreasing(sizes, capacity, random.permutation(samples))
        return groups.take(random.permutation(len(groups)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class FixedCountGroups(GroupingAlgorithm):
    """Base of OmniBal's baselines: groups of a fixed number of samples, fewer where more would exceed the capacity.

    Attributes:
        samples: Number of samples of a group.
    """

    samples: int

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise DataError(f"groups of {self.samples} samples; they need at least 1")

    def _next_fit(
        self,
        sizes: Float[np.ndarray, "n k"],
        capacity: Float[np.ndarray, " k"],
        order: Int[np.ndarray, " m"],
    ) -> Groups:
        counted = np.concatenate([sizes, np.ones((len(sizes), 1))], axis=1)
        limits = np.append(capacity, float(self.samples))
        return Groups.from_lengths(order, next_fit(as_columns(counted, limits), limits, order).lengths)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RandomGroups(FixedCountGroups):
    """The random baseline: sizes differ within a group and across devices."""

    def _group(self, sizes, capacity, samples, random):
        return self._next_fit(sizes, capacity, random.permutation(samples))


@dataclasses.dataclass(frozen=True, kw_only=True)
class SortedGroups(FixedCountGroups):
    """The sorted baseline: similar sizes within a group, so little padding, but groups that differ across devices.

    Attributes:
        modality: Modality by which samples are sorted.
    """

    modality: int

    def _group(self, sizes, capacity, samples, random):
        groups = self._next_fit(sizes, capacity, _by_size(sizes, samples, self.modality, random))
        return groups.take(random.permutation(len(groups)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceBalancedGroups(FixedCountGroups):
    """The device-group baseline: similar groups across devices, of samples that differ within a group.

    Samples in order of size are divided into runs of one for each device. Random runs, whose samples are dealt to the
    devices, make up a step of `devices` consecutive groups. If fewer samples than devices remain, they come last.

    Attributes:
        modality: Modality by which samples are sorted.
        devices: Number of devices of a step, each of which receives one group.
    """

    modality: int
    devices: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.devices < 1:
            raise DataError(f"{self.devices} devices; give at least 1")

    def open_groups(self, fill):
        """The step that was dealt last, because it ended with the samples."""
        whole = len(fill) // self.devices * self.devices
        return np.arange(max(whole - self.devices, 0), whole)

    def _group(self, sizes, capacity, samples, random):
        order = _by_size(sizes, samples, self.modality, random)
        whole = len(order) // self.devices * self.devices
        runs = order[:whole].reshape(-1, self.devices)
        # The groups of all devices close together, where the largest sample of a run would exceed a group: steps stay
        # whole.
        steps = self._next_fit(sizes[runs].max(axis=1), capacity, random.permutation(len(runs)))
        dealt = np.concatenate([samples[:0], *(runs[step].T.ravel() for step in steps)])
        groups = Groups.from_lengths(dealt, np.repeat(steps.lengths, self.devices))
        return concatenate_groups([groups, self._next_fit(sizes, capacity, order[whole:])])


def _by_size(
    sizes: Float[np.ndarray, "n k"], samples: Int[np.ndarray, " m"], modality: int, random: np.random.Generator
) -> Int[np.ndarray, " m"]:
    """Samples in order of their size in a modality, equal ones in random order."""
    if not 0 <= modality < sizes.shape[1]:
        raise DataError(f"modality {modality} of {sizes.shape[1]}; count from 0")
    shuffled = random.permutation(samples)
    return shuffled[np.argsort(sizes[shuffled, modality], kind="stable")]
