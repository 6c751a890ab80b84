"""Description of a data set in numbers: what its samples hold, what grouping makes of them, suggested capacities."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from data.data_config import CAPACITY_FIELDS, DataConfig, RowCapacity
from data.packing.grouping.buckets import Buckets, choose_buckets
from data.packing.grouping.comparison import GroupingResult, GroupingSettings, compare_grouping_policies
from data.packing.grouping.grouping_policies import row_limits
from data.packing.refusals import Refusal
from data.report.capacity_advice import (
    ROW_SIZE_MULTIPLES,
    SuggestedIsfCapacity,
    SuggestedRowCapacity,
    suggest_published_isf_capacity,
    suggest_row_capacity,
    suggest_searched_isf_capacity,
)
from data.report.dataset_statistics import TOKEN_MODALITIES, DatasetStatistics

PERCENTILES = (50, 90, 99)
DISTRIBUTIONS = ("tokens", "text", "patches", "frames", "images", "encoder_images", "encoder_clips")
IMAGES_GROW_REMARK = (
    "Images that were scaled down to fit a row grow with its patches: describe the data again with the suggestion."
)

_MAX_BARS = 32
_NEAR_CAPACITY = 0.75  # a sample of more of a row's patches may be an image that was scaled down
_SKEWED = 6.0  # longest length in medians from which on the widths of bars are proportional to their positions
_TOKEN_STEP = 8  # of buckets and of Q, where samples have a hundred tokens or more


@dataclasses.dataclass(frozen=True, kw_only=True)
class LengthDistribution:
    """Distribution of the units of the samples that have any.

    Attributes:
        name: One of `DISTRIBUTIONS`: `images` are generated, `encoder_images` and `encoder_clips` are model inputs.
        share: Share of the samples that have any.
        mean: Mean of those samples.
        minimum: Smallest number of units of those samples.
        maximum: Largest number of units of those samples.
        percentiles: Percentiles of those samples, by the number in a hundred.
        edges: Edges of the histogram's bars.
        counts: counts[i] samples have from edges[i] to below edges[i + 1] units.
    """

    name: str
    share: float
    mean: float
    minimum: int
    maximum: int
    percentiles: Mapping[int, float]
    edges: tuple[int, ...]
    counts: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class KindCount:
    """Number of samples of one kind.

    Attributes:
        name: The kind.
        available: Samples in the data set.
        drawn: Samples that were drawn.
        share: Share of the samples of a training run.
    """

    name: str
    available: int
    drawn: int
    share: float


@dataclasses.dataclass(frozen=True)
class RefusalSummary:
    """Number of samples of a kind that are refused for one cause, with an example."""

    cause: str
    kind: str
    samples: int
    example: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class DatasetDescription:
    """Description of a data set.

    Attributes:
        samples: Number of samples drawn and read, repetitions included.
        kinds: Kinds of samples.
        refused: Distinct samples that are in no step, by cause and kind.
        token_shares: Share of all backbone tokens of each modality (`TOKEN_MODALITIES`).
        distributions: Distributions of the units that the samples have.
        rows: Rows of a step, as configured.
        flops_per_unit: FLOPs of a unit of each modality in a forward pass, without attention.
        capacity: Capacity of a row, as configured.
        grouping: Grouping policy, as configured.
        grouping_results: Results of the padded baselines and of all policies, for the configured rows.
        published_isf: Q and Q' as OmniBal derives them; None without tokens.
        searched_isf: Q and Q' found by search, for groups of as many samples as configured rows; or why there are
            none.
        row_suggestions: Suggested capacities for rows of once, twice and four times the configured tokens.
        buckets: By modality, the sizes of least padding for 1, 2, ... buckets of samples.
    """

    samples: int
    kinds: tuple[KindCount, ...]
    refused: tuple[RefusalSummary, ...]
    token_shares: Mapping[str, float]
    distributions: tuple[LengthDistribution, ...]
    rows: int
    flops_per_unit: Mapping[str, float]
    capacity: Mapping[str, int]
    grouping: str
    grouping_results: tuple[GroupingResult, ...]
    published_isf: SuggestedIsfCapacity | None
    searched_isf: SuggestedIsfCapacity | str
    row_suggestions: tuple[SuggestedRowCapacity, ...]
    buckets: Mapping[str, tuple[Buckets, ...]]

    @property
    def remark(self) -> str:
        """`IMAGES_GROW_REMARK` if a suggestion may change the samples for which it was made; else empty."""
        patches = [distribution for distribution in self.distributions if distribution.name == "patches"]
        maximum = max((distribution.maximum for distribution in patches), default=0)
        configured = self.capacity.get("patches", 0)
        grows = any(suggestion.capacity.get("patches", 0) > configured for suggestion in self.row_suggestions)
        return IMAGES_GROW_REMARK if grows and maximum > _NEAR_CAPACITY * configured else ""

    @property
    def gin(self) -> tuple[str, ...]:
        """The first suggestion as lines of a gin file; none without suggestions."""
        if not self.row_suggestions:
            return ()
        capacity = self.row_suggestions[0].capacity
        return ("data_config.DataConfig:", *(f"  {name} = {value}" for name, value in capacity.items()))


def describe_dataset(
    statistics: DatasetStatistics,
    config: DataConfig,
    capacity: RowCapacity,
    flops_per_unit: Mapping[str, float],
    max_buckets: int,
) -> DatasetDescription:
    """Describes a data set.

    Args:
        statistics: Its samples.
        config: Rows, window, grouping and seed.
        capacity: Capacity of a row for the model (`data.packing.global_batch.capacity_for_model`).
        flops_per_unit: FLOPs of a unit of each modality (`data.report.dataset_statistics.flops_per_unit`).
        max_buckets: Largest number of sizes to which samples are padded.
    """
    in_capacity = [name for name in CAPACITY_FIELDS if getattr(capacity, name)]
    fitting_sizes = statistics.columns(*in_capacity)[statistics.fits].astype(float)
    settings = _grouping_settings(in_capacity, config, flops_per_unit)
    results = compare_grouping_policies(fitting_sizes, row_limits(capacity), settings)
    configured = next(result for result in results if result.policy == config.grouping and not result.padded)
    group_size = max(1.0, configured.samples_per_row - 0.5)
    in_samples = [name for name in in_capacity if statistics.columns(name).any()]
    sizes = statistics.columns(*in_samples).astype(float)
    multiples = [_multiple(name, statistics.columns(name)[:, 0]) for name in in_samples]
    settings = _grouping_settings(in_samples, config, flops_per_unit)
    start = np.array([getattr(capacity, name) for name in in_samples], float)
    suggestions = [
        suggest_row_capacity(sizes, multiples, multiple * start, config.grouping, settings)
        for multiple in ROW_SIZE_MULTIPLES
    ]
    return DatasetDescription(
        samples=len(statistics.units),
        kinds=_count_kinds(statistics),
        refused=_summarize_refusals(statistics.refused),
        token_shares=_token_shares(statistics.columns(*TOKEN_MODALITIES)),
        distributions=tuple(
            length_distribution(name, statistics.columns(name)[:, 0])
            for name in DISTRIBUTIONS
            if statistics.columns(name).any()
        ),
        rows=config.rows,
        flops_per_unit={name: flops_per_unit[name] for name in in_capacity},
        capacity={name: getattr(capacity, name) for name in (*in_capacity, "samples")},
        grouping=config.grouping,
        grouping_results=results,
        published_isf=suggest_published_isf_capacity(sizes, in_samples),
        searched_isf=suggest_searched_isf_capacity(sizes, in_samples, multiples, group_size, config.seed),
        row_suggestions=tuple(suggestion for suggestion in suggestions if suggestion),
        buckets={
            name: choose_buckets(units[units > 0], max_buckets, multiple)
            for name, units, multiple in zip(in_samples, statistics.columns(*in_samples).T, multiples, strict=True)
        },
    )


def _grouping_settings(
    modalities: Sequence[str], config: DataConfig, flops_per_unit: Mapping[str, float]
) -> GroupingSettings:
    flops = tuple(flops_per_unit[name] for name in modalities)
    return GroupingSettings(tuple(modalities), flops, config.rows, config.window, config.seed)


def length_distribution(name: str, units: Int[np.ndarray, " n"]) -> LengthDistribution:
    """The distribution of the samples that have any units; there must be one.

    Args:
        name: One of `DISTRIBUTIONS`.
        units: Units of every sample.
    """
    positive = units[units > 0]
    percentiles = np.percentile(positive, PERCENTILES).tolist()
    edges = _bar_edges(positive)
    return LengthDistribution(
        name=name,
        share=len(positive) / len(units),
        mean=float(positive.mean()),
        minimum=int(positive.min()),
        maximum=int(positive.max()),
        percentiles=dict(zip(PERCENTILES, percentiles, strict=True)),
        edges=tuple(edges.tolist()),
        counts=tuple(np.diff(np.searchsorted(np.sort(positive), edges)).tolist()),
    )


def _bar_edges(units: Int[np.ndarray, " n"]) -> Int[np.ndarray, " bars"]:
    """Edges of a histogram: one value a bar where there are few, else equal steps, or equal ratios if skewed."""
    minimum, end = int(units.min()), int(units.max()) + 1
    if end - minimum <= _MAX_BARS:
        return np.arange(minimum, end + 1)
    if end > _SKEWED * float(np.median(units)):
        return np.unique(np.rint(np.geomspace(minimum, end, _MAX_BARS + 1)).astype(np.int64))
    step = -(-(end - minimum) // _MAX_BARS)
    return np.arange(minimum, end + step, step)


def _multiple(name: str, units: Int[np.ndarray, " n"]) -> int:
    """Step of candidate capacities: a common divisor of all samples' units, such as the patches of an image."""
    if name == "tokens" and units.max() > 16 * _TOKEN_STEP:
        return _TOKEN_STEP
    return int(np.gcd.reduce(units))


def _count_kinds(statistics: DatasetStatistics) -> tuple[KindCount, ...]:
    total = sum(statistics.kinds.values())
    return tuple(
        KindCount(kind, available, statistics.kinds.get(kind, 0), statistics.kinds.get(kind, 0) / total)
        for kind, available in statistics.counts.items()
    )


def _summarize_refusals(refusals: Sequence[Refusal]) -> tuple[RefusalSummary, ...]:
    by_cause_and_kind: dict[tuple[str, str], list[Refusal]] = {}
    for refusal in refusals:
        by_cause_and_kind.setdefault((refusal.cause, refusal.kind), []).append(refusal)
    return tuple(
        RefusalSummary(cause, kind, len(group), f"{group[0].key}: {group[0].reason}")
        for (cause, kind), group in by_cause_and_kind.items()
    )


def _token_shares(tokens: Int[np.ndarray, "n modalities"]) -> dict[str, float]:
    totals = tokens.sum(axis=0)
    return {name: float(total / totals.sum()) for name, total in zip(TOKEN_MODALITIES, totals, strict=True) if total}


def description_json(description: DatasetDescription) -> dict[str, Any]:
    """The whole description as JSON values."""
    return dataclasses.asdict(description) | {"remark": description.remark, "gin": description.gin}
