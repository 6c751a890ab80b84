"""Policies that form groups of samples; sizes may be of any number of modalities, and no sample is lost."""

import abc
import dataclasses
from typing import Literal

import numpy as np
from jaxtyping import Float, Int

from data.errors import DataError
from data.packing.grouping.first_fit import first_fit_decreasing
from data.packing.grouping.groups import Groups, concatenate_groups
from data.packing.grouping.isf import sample_and_filter
from data.packing.grouping.next_fit import as_columns, next_fit
from data.packing.grouping.oversized import exceeds_capacity


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupingAlgorithm(abc.ABC):
    """Forms groups of which none holds more than the capacity, but for oversized samples.

    Attributes:
        oversized: What becomes of a sample that exceeds the capacity: a group of its own, or `Groups.refused`.
    """

    oversized: Literal["alone", "refuse"] = "alone"

    def __call__(
        self, sizes: Float[np.ndarray, "n k"], capacity: Float[np.ndarray, " k"], random: np.random.Generator
    ) -> Groups:
        """Groups in which every sample is once, or refused; oversized ones come last.

        Args:
            sizes: Units of every sample, by modality.
            capacity: Units that a group holds at most; may be infinite.
            random: Draws what is left to chance.

        Raises:
            DataError: Sizes or capacities that are none, or settings for another number of modalities.
        """
        too_large = exceeds_capacity(sizes, capacity)
        groups = self._group(sizes, capacity, np.flatnonzero(~too_large), random)
        apart = np.flatnonzero(too_large)
        if self.oversized == "refuse":
            return dataclasses.replace(groups, refused=apart)
        return concatenate_groups([groups, Groups.from_lengths(apart, np.ones_like(apart))])

    @abc.abstractmethod
    def _group(
        self,
        sizes: Float[np.ndarray, "n k"],
        capacity: Float[np.ndarray, " k"],
        samples: Int[np.ndarray, " m"],
        random: np.random.Generator,
    ) -> Groups:
        """Groups of those samples, none of which is oversized."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class IterativeSamplingAndFiltering(GroupingAlgorithm):
    """OmniBal's ISF (4.1); what no round accepts is sampled once more and not filtered.

    Attributes:
        threshold: Q', by modality: a group is accepted that reaches it in any.
        rounds: T, at most.
    """

    threshold: tuple[float, ...]
    rounds: int = 10

    def _group(self, sizes, capacity, samples, random):
        if len(self.threshold) != len(capacity):
            raise DataError(f"threshold {self.threshold} for {len(capacity)} modalities; give one for each")
        columns = as_columns(sizes, capacity)
        accepted, rest = sample_and_filter(columns, capacity, np.array(self.threshold), self.rounds, samples, random)
        rest = random.permutation(rest)
        return concatenate_groups([accepted, Groups.from_lengths(rest, next_fit(columns, capacity, rest).lengths)])


@dataclasses.dataclass(frozen=True, kw_only=True)
class FirstFit(GroupingAlgorithm):
    """First-fit packing, largest samples first; groups come in a random order."""

    def _group(self, sizes, capacity, samples, random):
        groups = first_fit_decreasing(sizes, capacity, random.permutation(samples))
        return groups.take(random.permutation(len(groups)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class FixedCountGroups(GroupingAlgorithm):
    """Of the baselines: groups of so many samples, fewer where more would exceed the capacity.

    Attributes:
        samples: In a group.
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
    """The baseline that draws samples at random: unlike sizes within a group and across devices."""

    def _group(self, sizes, capacity, samples, random):
        return self._next_fit(sizes, capacity, random.permutation(samples))


@dataclasses.dataclass(frozen=True, kw_only=True)
class SortedGroups(FixedCountGroups):
    """The baseline with like sizes within a group: little padding, but groups that differ across devices.

    Attributes:
        modality: Whose sizes are compared.
    """

    modality: int

    def _group(self, sizes, capacity, samples, random):
        groups = self._next_fit(sizes, capacity, _by_size(sizes, samples, self.modality, random))
        return groups.take(random.permutation(len(groups)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceBalancedGroups(FixedCountGroups):
    """The baseline with like sizes across devices: groups one behind the other are alike, their samples are not.

    Samples in order of size are cut into runs of one for each device. Random runs, dealt one sample to a device, make
    up a step: `devices` groups one behind the other. Where fewer samples than devices remain, they come last.

    Attributes:
        modality: Whose sizes are compared.
        devices: Among which a step's groups are divided.
    """

    modality: int
    devices: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.devices < 1:
            raise DataError(f"{self.devices} devices; give at least 1")

    def _group(self, sizes, capacity, samples, random):
        order = _by_size(sizes, samples, self.modality, random)
        whole = len(order) // self.devices * self.devices
        runs = order[:whole].reshape(-1, self.devices)
        # All devices' groups close together, so that steps stay whole: where the largest of a run would be too large.
        steps = self._next_fit(sizes[runs].max(axis=1), capacity, random.permutation(len(runs)))
        dealt = np.concatenate([samples[:0], *(runs[step].T.ravel() for step in steps)])
        groups = Groups.from_lengths(dealt, np.repeat(steps.lengths, self.devices))
        return concatenate_groups([groups, self._next_fit(sizes, capacity, order[whole:])])


def _by_size(
    sizes: Float[np.ndarray, "n k"], samples: Int[np.ndarray, " m"], modality: int, random: np.random.Generator
) -> Int[np.ndarray, " m"]:
    """Samples in order of their size in a modality, equal ones in a random order."""
    if not 0 <= modality < sizes.shape[1]:
        raise DataError(f"modality {modality} of {sizes.shape[1]}; count from 0")
    shuffled = random.permutation(samples)
    return shuffled[np.argsort(sizes[shuffled, modality], kind="stable")]
