"""What a row should hold: OmniBal's Q and Q', and capacities that the samples of a data set fill evenly."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

from data.errors import DataError
from data.packing.grouping.comparison import GroupingResult, GroupingSettings, evaluate_packing, values_by_modality
from data.packing.grouping.grouping_policies import NEARLY_FULL
from data.packing.grouping.isf import SLACK, published_isf_capacity, search_isf_capacity

ROW_SIZE_MULTIPLES = (1, 2, 4)
"""Times the configured tokens, for which rows are suggested."""

_ROOM = np.linspace(0.75, 2.5, 8)  # tried for each modality, times its share of the units
_PASSES = 2
_LARGER = (1.0, 1.25, 1.5, 2.0, 3.0)
_COARSE = 16  # round numbers: a capacity has so many steps or up to twice as many
_TRIED = 2**10  # samples on which capacities are tried
_SEARCHED = ("first_fit", "isf")  # other policies need a number of samples, and it is asked for
_SAMPLES_IN_STEPS_OF = 4


@dataclasses.dataclass(frozen=True)
class SuggestedIsfCapacity:
    """Q and Q' for iterative sampling and filtering, by modality.

    Attributes:
        capacity, threshold: Q and Q'.
        samples: Average samples of a group, where groups were tried.
        unfilled: Share of Q that groups leave unfilled, where they were tried.
        oversized: Share of the samples that exceed Q.
    """

    capacity: Mapping[str, float]
    threshold: Mapping[str, float]
    samples: float | None
    padding_share: Mapping[str, float]
    oversized: float


@dataclasses.dataclass(frozen=True)
class SuggestedRowCapacity:
    """A row's capacities.

    Attributes:
        capacity: Of tokens and all else that the samples have, and of `samples`.
        samples: Of a row, on average.
        unfilled: Share of padding, by modality.
        waste: The same over all modalities, by the work of their units.
        dist: DistRatio, by modality.
        oversized: Share of the samples that exceed it.
    """

    capacity: Mapping[str, int]
    samples_per_row: float
    padding_share: Mapping[str, float]
    wasted_flops_share: float
    dist_ratio: Mapping[str, float]
    oversized: float


def suggest_published_isf_capacity(
    sizes: Float[np.ndarray, "n k"], modalities: Sequence[str]
) -> SuggestedIsfCapacity | None:
    """Q of the longest sample and the proportions of the data (`derive_capacity`); the first modality is of reference.

    Q' is lower by the paper's 128 units, or by less where so much were a large part of Q. None if no sample has a unit
    of reference.
    """
    if not sizes[:, 0].any():
        return None
    longest = float(sizes[:, 0].max())
    capacity, threshold = published_isf_capacity(sizes, 0, slack=_slack(longest))
    oversized = float((sizes > capacity).any(axis=1).mean())
    return SuggestedIsfCapacity(
        values_by_modality(modalities, capacity), values_by_modality(modalities, threshold), None, {}, oversized
    )


def suggest_searched_isf_capacity(
    sizes: Float[np.ndarray, "n k"], modalities: Sequence[str], multiples: Sequence[int], samples: float, seed: int
) -> SuggestedIsfCapacity | str:
    """Q and Q' for groups of so many samples that leave least unfilled (`choose_capacity`), or why there are none.

    Where whole multiples allow no such groups, larger ones are tried, up to three times the samples.
    """
    reason = ""
    for times in _LARGER:
        try:
            wanted, random = samples * times, np.random.default_rng(seed)
            slack = _slack(wanted * float(sizes[:, 0].mean()))
            found = search_isf_capacity(sizes, wanted, [float(unit) for unit in multiples], 0, random, slack)
        except DataError as error:
            reason = reason or str(error)
            continue
        named = [
            values_by_modality(modalities, values) for values in (found.capacity, found.threshold, found.padding_share)
        ]
        return SuggestedIsfCapacity(named[0], named[1], found.samples, named[2], found.oversized)
    return reason


def suggest_row_capacity(
    sizes: Float[np.ndarray, "n k"],
    multiples: Sequence[int],
    known: Float[np.ndarray, " k"],
    grouping: str,
    setting: GroupingSettings,
) -> SuggestedRowCapacity | None:
    """Capacities for rows of so many tokens that waste least work.

    All modalities together and then one after the other are tried, from a little below the proportion in which they
    come with tokens to far above it; each holds its largest sample. None where the samples fill no step, or where all
    have more tokens. An image that was shrunk to what a row holds would grow with it; that is not foreseen.

    Args:
        sizes: Units of every sample, by modality; tokens first.
        multiples: Capacities are whole multiples of these, of a power of two of them where they are large.
        known: A capacity to start from, whose tokens stay as they are.
        grouping: Forms rows; a policy that needs a number of samples is replaced by first-fit.
        setting: Names, work, rows.
    """
    tokens = float(known[0])
    fitting = sizes[sizes[:, 0] <= tokens]
    if not len(fitting) or not fitting[:, 0].any():
        return None

    def tried(capacity: Float[np.ndarray, " k"], samples: int | None = None) -> GroupingResult:
        policy = grouping if grouping in _SEARCHED else _SEARCHED[0]
        return evaluate_packing(policy, fitting[:samples], np.append(capacity, np.inf), setting)

    share = tokens * fitting.sum(axis=0) / fitting[:, 0].sum()
    units = multiples * 2 ** np.floor(np.log2(np.maximum(share / multiples / _COARSE, 1)))
    grid = share * _ROOM[:, None]
    choices = np.maximum(np.ceil(np.maximum(grid, fitting.max(axis=0)) / units), 1) * units
    choices = np.concatenate([choices, np.maximum(known, fitting.max(axis=0))[None]])
    choices[:, 0] = tokens
    wastes = [_waste(tried(choice, _TRIED)) for choice in choices]
    capacity, least = choices[np.argmin(wastes)], min(wastes)
    for modality in list(range(1, len(multiples))) * _PASSES:
        for choice in np.setdiff1d(choices[:, modality], capacity[modality]):
            changed = capacity.copy()
            changed[modality] = choice
            waste = _waste(tried(changed, _TRIED))
            if waste < least:
                capacity, least = changed, waste
    best = tried(capacity)
    if best.wasted_flops_share is None:
        return None
    holds = {name: int(value) for name, value in zip(setting.modalities, capacity, strict=True)}
    holds["samples"] = -(-best.max_samples // _SAMPLES_IN_STEPS_OF) * _SAMPLES_IN_STEPS_OF
    oversized = 1 - len(fitting) / len(sizes)
    return SuggestedRowCapacity(
        holds, best.samples_per_row, best.padding_share, best.wasted_flops_share, best.dist_ratio, oversized
    )


def _slack(tokens: float) -> float:
    """The paper's 128 below Q, or a small part of a smaller Q."""
    return min(SLACK, float(math.floor((1 - NEARLY_FULL) * tokens)))


def _waste(outcome: GroupingResult) -> float:
    return math.inf if outcome.wasted_flops_share is None else outcome.wasted_flops_share
