"""Description of a data set in numbers: sizes of its samples, results of grouping policies, suggested capacities.

`mmjax describe_data` makes it, and the other files of this folder show it.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int

from data.data_config import DataConfig, IsfThresholds, RowCapacity
from data.packing.grouping.comparison import (
    GroupingResult,
    GroupingSettings,
    compare_grouping_policies,
    packed_groups,
)
from data.packing.grouping.grouping_policies import row_limits
from data.packing.grouping.groups import Groups
from data.packing.rows.refusals import Refusal
from data.report.capacity_advice import (
    ROW_SIZE_MULTIPLES,
    SuggestedIsfCapacity,
    SuggestedRowCapacity,
    suggest_published_isf_capacity,
    suggest_row_capacity,
    suggest_searched_isf_capacity,
)
from data.report.dataset_statistics import DatasetStatistics
from data.report.examples import SampleExample
from data.report.gin_lines import data_config_lines
from data.report.length_distribution import LengthDistribution, length_distribution
from data.report.phase_advice import SuggestedPhaseCapacities, suggest_phase_capacities
from sharding.balancing.buckets import Buckets, choose_buckets
from sharding.frames import make_frame
from sharding.plans.unit_plan import MOST_CAPACITIES

if TYPE_CHECKING:
    import pandas

IMAGES_GROW_REMARK = (
    "Images that were scaled down to fit a row grow with its patches: describe the data again with the suggestion."
)

_NEAR_CAPACITY = 0.75  # a sample of more of a row's patches may be an image that was scaled down
_TOKEN_STEP = 8  # of buckets and of Q, where samples have a hundred tokens or more


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


@dataclasses.dataclass(frozen=True, repr=False, kw_only=True)
class DatasetDescription:
    """Description of a data set.

    Attributes:
        samples: Number of samples drawn and read, repetitions included.
        kinds: Kinds of samples.
        refusals: Every distinct sample that is refused.
        target_share: Share of the tokens of all samples that count in the loss.
        untaught: Number of samples drawn that have no token in the loss and no image to generate.
        token_shares: Share of all backbone tokens of each modality (`DatasetStatistics.token_modalities`).
        distributions: Distributions of the units that the samples have.
        modules: Name of the module that reads each modality.
        rows: Rows of a step, as configured.
        flops_per_unit: FLOPs of a unit of each modality in a forward pass, without attention.
        capacity: Capacity of a row, as configured.
        grouping: Grouping policy, as configured.
        isf_thresholds: Q' of the grouping `isf`, as configured.
        grouping_results: Results of the padded baselines and of all policies, for the configured rows.
        published_isf: Q and Q' as OmniBal derives them; None without tokens.
        searched_isf: Q and Q' found by search, for groups of as many samples as configured rows; or why there are
            none.
        row_suggestions: Suggested capacities for rows of once, twice and four times the configured tokens.
        buckets: By modality, the sizes of least padding for 1, 2, ... buckets of samples.
        phase_capacities: By modality but tokens, capacities for a plan that gives its module rows of its own.
        examples: Typical and extreme samples, decoded; none unless asked for.
    """

    samples: int
    kinds: tuple[KindCount, ...]
    refusals: tuple[Refusal, ...]
    target_share: float
    untaught: int
    token_shares: Mapping[str, float]
    distributions: tuple[LengthDistribution, ...]
    modules: Mapping[str, str]
    rows: int
    flops_per_unit: Mapping[str, float]
    capacity: Mapping[str, int]
    grouping: str
    isf_thresholds: IsfThresholds
    grouping_results: tuple[GroupingResult, ...]
    published_isf: SuggestedIsfCapacity | None
    searched_isf: SuggestedIsfCapacity | str
    row_suggestions: tuple[SuggestedRowCapacity, ...]
    buckets: Mapping[str, tuple[Buckets, ...]]
    phase_capacities: Mapping[str, SuggestedPhaseCapacities]
    examples: tuple[SampleExample, ...] = ()

    @property
    def refused(self) -> tuple[RefusalSummary, ...]:
        """Number of refused samples by cause and kind."""
        return _summarize_refusals(self.refusals)

    @property
    def configured(self) -> GroupingResult:
        """Result of the configured grouping policy."""
        return next(result for result in self.grouping_results if result.policy == self.grouping and not result.padded)

    @property
    def suggested_grouping(self) -> GroupingResult:
        """Result of the policy whose rows waste the fewest FLOPs; the configured one where nothing fills a step."""
        packed = [
            result for result in self.grouping_results if not result.padded and result.wasted_flops_share is not None
        ]
        return min(packed, key=lambda result: result.wasted_flops_share or 0.0, default=self.configured)

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
        """The first suggestion and the suggested grouping as lines of a gin file; none without suggestions."""
        if not self.row_suggestions:
            return ()
        # The configured Q' belong to the configured capacities.
        thresholds = {"isf_thresholds": ()} if self.isf_thresholds else {}
        capacity = self.row_suggestions[0].capacity
        return data_config_lines(capacity, grouping=self.suggested_grouping.policy, **thresholds)

    @property
    def isf_suggestions(self) -> dict[str, SuggestedIsfCapacity]:
        """Suggestions of Q and Q' by how they were found: `longest sample`, `search`."""
        suggestions = {"longest sample": self.published_isf, "search": self.searched_isf}
        return {found: each for found, each in suggestions.items() if isinstance(each, SuggestedIsfCapacity)}

    def __repr__(self) -> str:
        return f"DatasetDescription({self.samples} samples of {', '.join(kind.name for kind in self.kinds)})"

    def to_frame(self) -> "pandas.DataFrame":
        """A frame with a row for every grouping policy and modality: shares of padding; UserError without pandas."""
        rows = [(result, name) for result in self.grouping_results for name in result.padding_share]
        return make_frame(
            {
                "policy": [result.policy for result, _ in rows],
                "padded": [result.padded for result, _ in rows],
                "modality": [name for _, name in rows],
                "samples_per_row": [result.samples_per_row for result, _ in rows],
                **{
                    share: [getattr(result, share)[name] for result, name in rows]
                    for share in ("pad_ratio", "dist_ratio", "padding_share")
                },
                "wasted_flops_share": [result.wasted_flops_share for result, _ in rows],
            }
        )


def describe_dataset(
    statistics: DatasetStatistics,
    config: DataConfig,
    capacity: RowCapacity,
    flops_per_unit: Mapping[str, float],
    modules: Mapping[str, str],
    quadratic_cost_weights: Mapping[str, float],
    max_buckets: int,
    microbatch_rows: int = 0,
    examples: Sequence[SampleExample] = (),
) -> DatasetDescription:
    """Describes a data set.

    Args:
        statistics: Statistics of the data set's samples.
        config: Rows, window, grouping and seed.
        capacity: Capacity of a row for the model (`data.packing.global_batch.capacity_for_model`).
        flops_per_unit: FLOPs of a unit of each modality (`data.report.dataset_statistics.flops_per_unit`).
        modules: Module that reads each modality (`data.report.dataset_statistics.modules_of_units`).
        quadratic_cost_weights: By encoder field (`data.report.dataset_statistics.quadratic_cost_weights`).
        max_buckets: Largest number of sizes to which samples are padded.
        microbatch_rows: Rows of a microbatch, for capacities of phase rows; 0 for the rows of a step.
        examples: Decoded samples to show (`data.report.examples.decode_examples`).
    """
    in_capacity = [name for name, size in capacity.units.items() if size]
    in_samples = [name for name in in_capacity if statistics.columns(name).any()]
    settings = dataclasses.replace(
        _grouping_settings(in_capacity, config, flops_per_unit), isf_thresholds=dict(config.isf_thresholds)
    )
    fitting_sizes = statistics.columns(*in_capacity)[statistics.fits].astype(float)
    results = compare_grouping_policies(fitting_sizes, row_limits(capacity), settings)
    configured = next(result for result in results if result.policy == config.grouping and not result.padded)
    groups = packed_groups(config.grouping, fitting_sizes, row_limits(capacity), settings)
    sizes = statistics.columns(*in_samples).astype(float)
    multiples = [_multiple(name, statistics.columns(name)[:, 0]) for name in in_samples]
    group_size = max(1.0, configured.samples_per_row - 0.5)
    start = np.array([capacity.units[name] for name in in_samples], float)
    suggestion_settings = _grouping_settings(in_samples, config, flops_per_unit)
    suggestions = [
        suggest_row_capacity(sizes, multiples, multiple * start, config.grouping, suggestion_settings)
        for multiple in ROW_SIZE_MULTIPLES
    ]
    return DatasetDescription(
        samples=len(statistics.fits),
        kinds=_count_kinds(statistics),
        refusals=statistics.refused,
        target_share=float(statistics.units["targets"].sum() / statistics.units["tokens"].sum()),
        untaught=int(((statistics.units["targets"] == 0) & (statistics.units["images"] == 0)).sum()),
        token_shares=_token_shares(statistics),
        distributions=_distributions(statistics),
        modules={name: modules[name] for name in in_capacity},
        rows=config.rows,
        flops_per_unit={name: flops_per_unit[name] for name in in_capacity},
        capacity={name: capacity.units[name] for name in in_capacity} | {"samples": capacity.samples},
        grouping=config.grouping,
        isf_thresholds=config.isf_thresholds,
        grouping_results=results,
        published_isf=suggest_published_isf_capacity(sizes, in_samples, multiples, config.seed),
        searched_isf=suggest_searched_isf_capacity(sizes, in_samples, multiples, group_size, config.seed),
        row_suggestions=tuple(suggestion for suggestion in suggestions if suggestion),
        buckets={
            name: choose_buckets(units[units > 0], max_buckets, multiple)
            for name, units, multiple in zip(in_samples, statistics.columns(*in_samples).T, multiples, strict=True)
        },
        phase_capacities=_phase_capacities(
            statistics, groups, in_samples, microbatch_rows or config.rows, quadratic_cost_weights
        ),
        examples=tuple(examples),
    )


def _distributions(statistics: DatasetStatistics) -> tuple[LengthDistribution, ...]:
    """The lengths of what samples hold, of each quantity that some sample has."""
    return tuple(
        length_distribution(name, statistics.columns(name)[:, 0])
        for name in statistics.distributed
        if statistics.columns(name).any()
    )


def _phase_capacities(
    statistics: DatasetStatistics,
    groups: Groups,
    in_samples: Sequence[str],
    microbatch_rows: int,
    quadratic_cost_weights: Mapping[str, float],
) -> dict[str, SuggestedPhaseCapacities]:
    """Suggested capacities of phase rows, by quantity of which rows of their own can be made."""
    fitting = np.flatnonzero(statistics.fits).tolist()
    suggested = {
        name: suggest_phase_capacities(
            groups,
            [statistics.items[name][sample] for sample in fitting],
            microbatch_rows,
            MOST_CAPACITIES,
            _multiple(name, statistics.columns(name)[:, 0]),
            quadratic_cost_weights.get(name, 0.0),
        )
        for name in in_samples
        if name in statistics.items
    }
    return {name: capacities for name, capacities in suggested.items() if capacities}


def _grouping_settings(
    modalities: Sequence[str], config: DataConfig, flops_per_unit: Mapping[str, float]
) -> GroupingSettings:
    flops = tuple(flops_per_unit[name] for name in modalities)
    return GroupingSettings(
        modalities=tuple(modalities),
        flops_per_unit=flops,
        rows=config.rows,
        window=config.window,
        seed=config.seed,
    )


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


def _token_shares(statistics: DatasetStatistics) -> dict[str, float]:
    names = statistics.token_modalities
    totals = statistics.columns(*names).sum(axis=0)
    return {name: float(total / totals.sum()) for name, total in zip(names, totals, strict=True) if total}
