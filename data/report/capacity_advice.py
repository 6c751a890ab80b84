"""Suggested capacities: OmniBal's Q and Q', and row capacities that the samples of a data set fill evenly."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

from data.errors import DataError
from data.packing.grouping.comparison import (
    GroupingResult,
    GroupingSettings,
    evaluate_packing,
    values_by_modality,
)
from data.packing.grouping.grouping_policies import ISF_THRESHOLD
from data.packing.grouping.isf import (
    SLACK,
    IsfCapacity,
    evaluate_isf_capacity,
    published_isf_capacity,
    search_isf_capacity,
)
from data.report.gin_lines import data_config_lines

ROW_SIZE_MULTIPLES = (1, 2, 4)
"""Multiples of the configured tokens for which row capacities are suggested."""

_ROOM = np.linspace(0.75, 2.5, 8)  # candidate capacities of a modality, relative to its share of the units
_PASSES = 2
_GROUP_SIZE_FACTORS = (1.0, 1.25, 1.5, 2.0, 3.0)
_COARSE_STEPS = 16  # a capacity consists of this many to twice as many steps
_MAX_EVALUATED = 2**10  # samples on which candidates are evaluated
_SEARCHED_POLICIES: tuple[str, ...] = ("first_fit", "isf")  # others need a number of samples
_SAMPLES_STEP = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class SuggestedIsfCapacity:
    """Q and Q' for iterative sampling and filtering.

    Attributes:
        capacity: Q, by modality.
        threshold: Q', by modality.
        samples_per_group: Average number of samples of a group.
        max_samples: Samples that a row holds: at least as many as the largest group has.
        padding_share: Share of Q that groups leave empty, by modality.
        oversized: Share of the samples that exceed Q.
    """

    capacity: Mapping[str, float]
    threshold: Mapping[str, float]
    samples_per_group: float
    max_samples: int
    padding_share: Mapping[str, float]
    oversized: float

    @property
    def gin(self) -> tuple[str, ...]:
        """Q, Q' and the grouping as lines of a gin file."""
        thresholds = tuple((name, int(units)) for name, units in self.threshold.items())
        return data_config_lines(
            {**self.capacity, "samples": self.max_samples}, grouping="isf", isf_thresholds=thresholds
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SuggestedRowCapacity:
    """Capacity of a row.

    Attributes:
        capacity: Capacity in tokens, in every other quantity that the samples have, and in `samples`, by name.
        samples_per_row: Average number of samples of a row.
        padding_share: Share of padding, by modality.
        wasted_flops_share: Share of padding over all modalities, weighted by the FLOPs of their units.
        dist_ratio: DistRatio, by modality.
        oversized: Share of the samples that exceed the capacity.
    """

    capacity: Mapping[str, int]
    samples_per_row: float
    padding_share: Mapping[str, float]
    wasted_flops_share: float
    dist_ratio: Mapping[str, float]
    oversized: float


def suggest_published_isf_capacity(
    sizes: Float[np.ndarray, "n k"], modalities: Sequence[str], multiples: Sequence[int], seed: int
) -> SuggestedIsfCapacity | None:
    """Q from the longest sample and the proportions of the data (`published_isf_capacity`).

    The first modality is the reference. Q of the others are whole multiples, as the paper's are whole images. Q' is
    lower by the paper's 128 units, or by less where 128 would be a large share of Q. None if no sample has reference
    units.
    """
    if not sizes[:, 0].any():
        return None
    units = np.array([1, *multiples[1:]], float)
    capacity, threshold = published_isf_capacity(sizes / units, 0, slack=_slack(float(sizes[:, 0].max())))
    result = evaluate_isf_capacity(sizes, capacity * units, threshold * units, np.random.default_rng(seed))
    return _suggested(modalities, result)


def suggest_searched_isf_capacity(
    sizes: Float[np.ndarray, "n k"], modalities: Sequence[str], multiples: Sequence[int], samples: float, seed: int
) -> SuggestedIsfCapacity | str:
    """Q and Q' with the least padding for groups of `samples` samples (`search_isf_capacity`), or why there are none.

    Where no whole multiples give such groups, larger groups are searched, up to three times the samples.
    """
    reason = ""
    for factor in _GROUP_SIZE_FACTORS:
        group_size, random = samples * factor, np.random.default_rng(seed)
        slack = _slack(group_size * float(sizes[:, 0].mean()))
        try:
            best = search_isf_capacity(sizes, group_size, [float(unit) for unit in multiples], 0, random, slack)
        except DataError as error:
            reason = reason or str(error)
            continue
        return _suggested(modalities, best)
    return reason


def _suggested(modalities: Sequence[str], result: IsfCapacity) -> SuggestedIsfCapacity:
    return SuggestedIsfCapacity(
        capacity=values_by_modality(modalities, result.capacity),
        threshold=values_by_modality(modalities, result.threshold),
        samples_per_group=result.samples,
        max_samples=_rounded_samples(result.max_samples),
        padding_share=values_by_modality(modalities, result.padding_share),
        oversized=result.oversized,
    )


def suggest_row_capacity(
    sizes: Float[np.ndarray, "n k"],
    multiples: Sequence[int],
    start: Float[np.ndarray, " k"],
    grouping: str,
    settings: GroupingSettings,
) -> SuggestedRowCapacity | None:
    """The capacity of rows of a given number of tokens that wastes the fewest FLOPs.

    All modalities together, and then one after the other, are varied from a little below the proportion in which they
    come with tokens to far above it; each capacity holds the largest sample. An image that was scaled down to fit a
    row would grow with the capacity, which is not taken into account.

    Args:
        sizes: Units of every sample, by modality; tokens first.
        multiples: Capacities are whole multiples of these, or of a power of two times these where they are large.
        start: Capacity to start from; its tokens are kept.
        grouping: Policy that forms rows; one that needs a number of samples is replaced by first-fit.
        settings: Modalities, costs, rows, window and seed.

    Returns:
        None where the samples fill no step, or where all have more tokens.
    """
    tokens = float(start[0])
    fitting = sizes[sizes[:, 0] <= tokens]
    if not len(fitting) or not fitting[:, 0].any():
        return None
    policy = grouping if grouping in _SEARCHED_POLICIES else _SEARCHED_POLICIES[0]

    def evaluate(capacity: Float[np.ndarray, " k"], max_samples: int | None = None) -> GroupingResult:
        return evaluate_packing(policy, fitting[:max_samples], np.append(capacity, np.inf), settings)

    # Candidates [candidate, modality]; the last one is the start.
    share = tokens * fitting.sum(axis=0) / fitting[:, 0].sum()
    steps = multiples * 2 ** np.floor(np.log2(np.maximum(share / multiples / _COARSE_STEPS, 1)))
    grid = share * _ROOM[:, None]
    candidates = np.maximum(np.ceil(np.maximum(grid, fitting.max(axis=0)) / steps), 1) * steps
    candidates = np.concatenate([candidates, np.maximum(start, fitting.max(axis=0))[None]])
    candidates[:, 0] = tokens
    wastes = [_wasted_flops(evaluate(candidate, _MAX_EVALUATED)) for candidate in candidates]
    capacity, least_waste = candidates[np.argmin(wastes)], min(wastes)
    for modality in list(range(1, len(multiples))) * _PASSES:
        for value in np.setdiff1d(candidates[:, modality], capacity[modality]):
            changed = capacity.copy()
            changed[modality] = value
            waste = _wasted_flops(evaluate(changed, _MAX_EVALUATED))
            if waste < least_waste:
                capacity, least_waste = changed, waste
    best = evaluate(capacity)
    if best.wasted_flops_share is None:
        return None
    named = {name: int(value) for name, value in zip(settings.modalities, capacity, strict=True)}
    named["samples"] = _rounded_samples(best.max_samples)
    return SuggestedRowCapacity(
        capacity=named,
        samples_per_row=best.samples_per_row,
        padding_share=best.padding_share,
        wasted_flops_share=best.wasted_flops_share,
        dist_ratio=best.dist_ratio,
        oversized=1 - len(fitting) / len(sizes),
    )


def _rounded_samples(samples: int) -> int:
    """A capacity in samples, at least as many and at least 1."""
    return max(1, -(-samples // _SAMPLES_STEP)) * _SAMPLES_STEP


def _slack(tokens: float) -> float:
    """Q - Q': the paper's 128 units, or a small share of a smaller Q."""
    return min(SLACK, float(math.floor((1 - ISF_THRESHOLD) * tokens)))


def _wasted_flops(result: GroupingResult) -> float:
    return math.inf if result.wasted_flops_share is None else result.wasted_flops_share
