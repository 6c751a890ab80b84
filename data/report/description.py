"""A data set described in numbers: what its samples hold, what balancing makes of them, what rows should hold."""

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
DISTRIBUTIONS = ("tokens", "text", "patches", "frames", "images", "pictures", "clips")
IMAGES_GROW_REMARK = (
    "Images that are shrunk to what a row holds grow with its patches: describe the data again with what is suggested."
)
_BARS = 32
_SHRUNK = 0.75  # of a row's patches: a sample of more may be an image that was shrunk to fit
_SKEWED = 6.0  # times the median: from such a longest sample on, bars are as wide as their place is high
_TOKENS_IN_STEPS_OF = 8  # of a bucket or of Q, where samples are of a hundred tokens or more


@dataclasses.dataclass(frozen=True)
class LengthDistribution:
    """Units of the samples that have any.

    Attributes:
        name: Of `DISTRIBUTIONS`; `images` are to be drawn, `pictures` and `clips` are read by encoders.
        share: Of the samples that have any.
        mean, least, most: Of those.
        percentiles: Of those, by the number in a hundred.
        edges, counts: Bars: counts[i] samples have from edges[i] to below edges[i + 1] units.
    """

    name: str
    share: float
    mean: float
    least: int
    most: int
    percentiles: Mapping[int, float]
    edges: tuple[int, ...]
    counts: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class KindCount:
    """One kind of samples: how many the source has, how many were drawn, and their share of a training run's."""

    name: str
    source: int
    drawn: int
    share: float


@dataclasses.dataclass(frozen=True)
class RefusalSummary:
    """Samples refused for one cause in one kind, and one of them for an example."""

    cause: str
    kind: str
    samples: int
    example: str


@dataclasses.dataclass(frozen=True)
class DatasetDescription:
    """Everything that is told of a data set.

    Attributes:
        samples: Drawn and read, repetitions too.
        kinds: Kinds of samples.
        refused: Distinct samples that no step has, by cause and kind.
        shares: Of all backbone tokens, by modality (`data.report.dataset_statistics.PARTS`).
        distributions: Of what the samples have at all.
        rows, capacity, grouping: As configured.
        work: FLOPs of a unit of each modality, forward and without attention.
        outcomes: Of the padded baselines and all policies, at the configured rows.
        paper: Q and Q' as OmniBal derives them; None without tokens.
        tried: Q and Q' found by trying, for rows of as many samples as configured, or why there are none.
        advice: Suggested capacities, for rows of once, twice and four times the configured tokens.
        buckets: By modality, the sizes of least padding for 1, 2... buckets of samples.
    """

    samples: int
    kinds: tuple[KindCount, ...]
    refused: tuple[RefusalSummary, ...]
    shares: Mapping[str, float]
    distributions: tuple[LengthDistribution, ...]
    rows: int
    work: Mapping[str, float]
    capacity: Mapping[str, int]
    grouping: str
    outcomes: tuple[GroupingResult, ...]
    paper: SuggestedIsfCapacity | None
    tried: SuggestedIsfCapacity | str
    advice: tuple[SuggestedRowCapacity, ...]
    buckets: Mapping[str, tuple[Buckets, ...]]

    @property
    def remark(self) -> str:
        """What to know of the advice: whether it may change the samples for which it is."""
        most = max((each.most for each in self.distributions if each.name == "patches"), default=0)
        now = self.capacity.get("patches", 0)
        more = any(each.capacity.get("patches", 0) > now for each in self.advice)
        return IMAGES_GROW_REMARK if more and most > _SHRUNK * now else ""

    @property
    def gin(self) -> tuple[str, ...]:
        """The first advice as lines of a gin file; none without advice."""
        if not self.advice:
            return ()
        return ("data_config.DataConfig:", *(f"  {name} = {value}" for name, value in self.advice[0].capacity.items()))


def describe_dataset(
    found: DatasetStatistics, config: DataConfig, capacity: RowCapacity, work: Mapping[str, float], buckets: int
) -> DatasetDescription:
    """Describes surveyed samples.

    Args:
        found: The samples.
        config: Rows, window, grouping and seed.
        capacity: Of a row, without what the model has no module for (`data.packing.global_batch.batch_capacity`).
        work: What a unit of each modality costs (`data.report.flops_per_unit`).
        buckets: Sizes that samples are padded to, at most.
    """
    held = [name for name in CAPACITY_FIELDS if getattr(capacity, name)]
    outcomes = compare_grouping_policies(
        found.columns(*held)[found.fits].astype(float), row_limits(capacity), _setting(held, config, work)
    )
    wanted = next(
        outcome.samples_per_row for outcome in outcomes if outcome.policy == config.grouping and not outcome.padded
    )
    present = [name for name in held if found.columns(name).any()]
    sizes = found.columns(*present).astype(float)
    multiples = [_multiple(name, found.columns(name)[:, 0]) for name in present]
    setting = _setting(present, config, work)
    known = np.array([getattr(capacity, name) for name in present], float)
    advised = [
        suggest_row_capacity(sizes, multiples, times * known, config.grouping, setting) for times in ROW_SIZE_MULTIPLES
    ]
    return DatasetDescription(
        samples=len(found.units),
        kinds=_kinds(found),
        refused=_refused(found.refused),
        shares=_shares(found.columns(*TOKEN_MODALITIES)),
        distributions=tuple(
            length_distribution(name, found.columns(name)[:, 0]) for name in DISTRIBUTIONS if found.columns(name).any()
        ),
        rows=config.rows,
        work={name: work[name] for name in held},
        capacity={name: getattr(capacity, name) for name in (*held, "samples")},
        grouping=config.grouping,
        outcomes=outcomes,
        paper=suggest_published_isf_capacity(sizes, present),
        tried=suggest_searched_isf_capacity(sizes, present, multiples, max(1.0, wanted - 0.5), config.seed),
        advice=tuple(advice for advice in advised if advice),
        buckets={
            name: choose_buckets(units[units > 0], buckets, multiple)
            for name, units, multiple in zip(present, found.columns(*present).T, multiples, strict=True)
        },
    )


def _setting(modalities: Sequence[str], config: DataConfig, work: Mapping[str, float]) -> GroupingSettings:
    names = tuple(modalities)
    return GroupingSettings(names, tuple(work[name] for name in names), config.rows, config.window, config.seed)


def length_distribution(name: str, units: Int[np.ndarray, " n"]) -> LengthDistribution:
    """Of the samples that have any unit; there must be one."""
    having = units[units > 0]
    percentiles = np.percentile(having, PERCENTILES).tolist()
    edges = _edges(having)
    return LengthDistribution(
        name=name,
        share=len(having) / len(units),
        mean=float(having.mean()),
        least=int(having.min()),
        most=int(having.max()),
        percentiles=dict(zip(PERCENTILES, percentiles, strict=True)),
        edges=tuple(edges.tolist()),
        counts=tuple(np.diff(np.searchsorted(np.sort(having), edges)).tolist()),
    )


def _edges(units: Int[np.ndarray, " n"]) -> Int[np.ndarray, " bars"]:
    """Whole numbers between bars: one a bar where they are few, in equal steps or, where lengths are skewed, ratios."""
    least, beyond = int(units.min()), int(units.max()) + 1
    if beyond - least <= _BARS:
        return np.arange(least, beyond + 1)
    if beyond > _SKEWED * float(np.median(units)):
        return np.unique(np.rint(np.geomspace(least, beyond, _BARS + 1)).astype(np.int64))
    step = -(-(beyond - least) // _BARS)
    return np.arange(least, beyond + step, step)


def _multiple(name: str, units: Int[np.ndarray, " n"]) -> int:
    """Of capacities worth trying: what all samples' units are multiples of, such as the patches of an image."""
    if name == "tokens" and units.max() > 16 * _TOKENS_IN_STEPS_OF:
        return _TOKENS_IN_STEPS_OF
    return int(np.gcd.reduce(units))


def _kinds(found: DatasetStatistics) -> tuple[KindCount, ...]:
    drawn = sum(found.kinds.values())
    return tuple(
        KindCount(name, count, found.kinds.get(name, 0), found.kinds.get(name, 0) / drawn)
        for name, count in found.counts.items()
    )


def _refused(refusals: Sequence[Refusal]) -> tuple[RefusalSummary, ...]:
    alike: dict[tuple[str, str], list[Refusal]] = {}
    for refusal in refusals:
        alike.setdefault((refusal.cause, refusal.kind), []).append(refusal)
    return tuple(
        RefusalSummary(cause, kind, len(those), f"{those[0].key}: {those[0].reason}")
        for (cause, kind), those in alike.items()
    )


def _shares(parts: Int[np.ndarray, "n parts"]) -> dict[str, float]:
    totals = parts.sum(axis=0)
    return {name: float(total / totals.sum()) for name, total in zip(TOKEN_MODALITIES, totals, strict=True) if total}


def description_json(description: DatasetDescription) -> dict[str, Any]:
    """Everything, as JSON holds it."""
    return dataclasses.asdict(description) | {"remark": description.remark, "gin": description.gin}
