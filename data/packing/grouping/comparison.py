"""Comparison of grouping policies on the same samples: padding, idle replicas, and the waste of static shapes.

`mmjax describe_data` shows the results.
"""

import bisect
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import Float, Int

from data.packing.grouping.algorithms import DeviceBalancedGroups, GroupingAlgorithm, RandomGroups, SortedGroups
from data.packing.grouping.grouping_policies import GROUPING_POLICIES, isf_thresholds
from data.packing.grouping.groups import Groups, concatenate_groups
from data.packing.grouping.steps import FormSteps, consecutive_steps, form_window_steps
from data.packing.grouping.windows import WindowRule

PADDED_BASELINES: dict[str, Callable[[int, int], GroupingAlgorithm]] = {
    "random": lambda samples, rows: RandomGroups(samples=samples),
    "sorted": lambda samples, rows: SortedGroups(samples=samples, modality=0),
    "device_group": lambda samples, rows: DeviceBalancedGroups(samples=samples, modality=0, devices=rows),
}
"""OmniBal's baselines, from the samples of a batch and the rows of a step; batches are padded to the longest sample."""


def pad_ratio(groups: Groups, sizes: Float[np.ndarray, "n k"]) -> Float[np.ndarray, "g k"]:
    """PadRatio: the share of padding in each group if its samples are padded to the largest.

    Equation 1 of arXiv 2407.20761: sum over the B samples i of (nt_max - nt_i) / (nt_max B); 0 where no sample has a
    unit.
    """
    padded = groups.largest(sizes) * groups.lengths[:, None]
    return np.divide(padded - groups.sums(sizes), padded, out=np.zeros_like(padded), where=padded > 0)


def dist_ratio(totals: Float[np.ndarray, "g k"], steps: Int[np.ndarray, "steps rows"]) -> Float[np.ndarray, "steps k"]:
    """DistRatio: the share of each step in which replicas idle because another one has more units.

    Equation 2 of arXiv 2407.20761: sum over the ND replicas i of (NT_max - NT_i) / (NT_max ND); 0 where no replica has
    a unit.

    Args:
        totals: Units of each group (`Groups.sums`) or of the padded batch.
        steps: The groups of each step, one for each replica.
    """
    units = totals[steps]
    largest = units.max(axis=1, initial=0.0)
    idle = largest - units.mean(axis=1) if steps.shape[1] else largest
    return np.divide(idle, largest, out=np.zeros_like(largest), where=largest > 0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupingResult:
    """Result of a policy: means over rows and steps, shares by modality.

    Attributes:
        policy: Name of the policy.
        padded: Whether the samples of a row are padded to its longest sample; otherwise they are packed.
        rows: Number of rows formed; rows that fill no step are left out, as training keeps them for later.
        samples_per_row: Average number of samples of a row.
        max_samples: Largest number of samples of a row.
        pad_ratio: PadRatio: share of padding between the samples of a row; 0 for packed rows.
        dist_ratio: DistRatio: share of a step in which replicas of one row each idle.
        padding_share: Share of padding where all rows have one shape: the capacity, or the largest padded batch.
        wasted_flops_share: Share of padding over all modalities, weighted by the FLOPs of their units.
    """

    policy: str
    padded: bool
    rows: int = 0
    samples_per_row: float = 0.0
    max_samples: int = 0
    pad_ratio: Mapping[str, float] = dataclasses.field(default_factory=dict)
    dist_ratio: Mapping[str, float] = dataclasses.field(default_factory=dict)
    padding_share: Mapping[str, float] = dataclasses.field(default_factory=dict)
    wasted_flops_share: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupingSettings:
    """The conditions under which samples are grouped.

    Attributes:
        modalities: Names of the columns of sizes.
        flops_per_unit: Cost of a unit of each modality; only their ratios matter.
        rows: Rows of a step.
        window: Samples that are grouped at a time, at least (`WindowRule`).
        seed: Seed of every policy.
        isf_thresholds: Q' of ISF by modality (`DataConfig.isf_thresholds`).
    """

    modalities: tuple[str, ...]
    flops_per_unit: tuple[float, ...]
    rows: int
    window: int
    seed: int
    isf_thresholds: Mapping[str, int | float] = dataclasses.field(default_factory=dict)


def compare_grouping_policies(
    sizes: Float[np.ndarray, "n k"],
    limits: Float[np.ndarray, " limits"],
    settings: GroupingSettings,
) -> tuple[GroupingResult, ...]:
    """Results of the padded baselines, then of every policy that a configuration can name.

    The batches of the baselines have as many samples as a row packed first-fit, so that they are about as large.

    Args:
        sizes: Units of every sample, by modality; none exceeds the limits.
        limits: Capacity of a row in each modality, then in samples (`row_limits`).
        settings: Conditions of the comparison.
    """
    packed = [evaluate_packing(name, sizes, limits, settings) for name in GROUPING_POLICIES]
    samples = max(1, int(packed[0].samples_per_row))
    padded = [_evaluate_padding(name, samples, sizes, len(limits), settings) for name in PADDED_BASELINES]
    return (*padded, *packed)


def evaluate_packing(
    name: str,
    sizes: Float[np.ndarray, "n k"],
    limits: Float[np.ndarray, " limits"],
    settings: GroupingSettings,
) -> GroupingResult:
    """Result of one policy; arguments as of `compare_grouping_policies`."""
    rows = packed_groups(name, sizes, limits, settings)
    units = rows.sums(sizes)
    return _summarize(name, rows, settings, units, units, limits[:-1], None)


def packed_groups(
    name: str, sizes: Float[np.ndarray, "n k"], limits: Float[np.ndarray, " limits"], settings: GroupingSettings
) -> Groups:
    """The samples of all rows of whole steps, as one policy packs them; arguments as of `compare_grouping_policies`."""
    policy = GROUPING_POLICIES[name]
    thresholds = isf_thresholds(settings.modalities, limits, settings.isf_thresholds)
    algorithm = policy.make_algorithm(limits, thresholds, settings.rows)
    return _rows_of_steps(algorithm, policy.form_steps, sizes, limits, settings, rows_wait=True)


def _evaluate_padding(
    name: str, samples: int, sizes: Float[np.ndarray, "n k"], limit_count: int, settings: GroupingSettings
) -> GroupingResult:
    """Result of padded batches of a number of samples, whatever their sizes; no row waits to be filled."""
    algorithm = PADDED_BASELINES[name](samples, settings.rows)
    limits = np.append(np.full(limit_count - 1, np.inf), samples)
    rows = _rows_of_steps(algorithm, consecutive_steps, sizes, limits, settings, rows_wait=False)
    padded = rows.largest(sizes) * rows.lengths[:, None]
    shape = padded.max(axis=0, initial=0.0)
    return _summarize(name, rows, settings, rows.sums(sizes), padded, shape, pad_ratio(rows, sizes))


def _summarize(
    name: str,
    rows: Groups,
    settings: GroupingSettings,
    units: Float[np.ndarray, "g k"],
    padded_units: Float[np.ndarray, "g k"],
    shape: Float[np.ndarray, " k"],
    pad_ratios: Float[np.ndarray, "g k"] | None,
) -> GroupingResult:
    """Means over rows.

    Args:
        name: Name of the policy.
        rows: The rows of whole steps.
        settings: Conditions of the comparison.
        units: Units of every row, by modality.
        padded_units: Units of every row with the padding between its samples, by modality.
        shape: Units of the shape that all rows have.
        pad_ratios: Share of padding in every row; None for packed rows.
    """
    is_padded = pad_ratios is not None
    if not len(rows):
        return GroupingResult(policy=name, padded=is_padded)
    named = functools.partial(values_by_modality, settings.modalities)
    dist_ratios = dist_ratio(padded_units, np.arange(len(rows)).reshape(-1, settings.rows))
    mean_units, flops = units.mean(axis=0), np.array(settings.flops_per_unit)
    return GroupingResult(
        policy=name,
        padded=is_padded,
        rows=len(rows),
        samples_per_row=float(rows.lengths.mean()),
        max_samples=int(rows.lengths.max()),
        pad_ratio=named(np.zeros_like(mean_units) if pad_ratios is None else pad_ratios.mean(axis=0)),
        dist_ratio=named(dist_ratios.mean(axis=0)),
        padding_share=named(1 - np.divide(mean_units, shape, out=np.ones_like(mean_units), where=shape > 0)),
        wasted_flops_share=float(1 - (flops * mean_units).sum() / (flops * shape).sum()),
    )


def _rows_of_steps(
    algorithm: GroupingAlgorithm,
    form_steps: FormSteps,
    sizes: Float[np.ndarray, "n k"],
    limits: Float[np.ndarray, " limits"],
    settings: GroupingSettings,
    rows_wait: bool,
) -> Groups:
    """The rows of all whole steps in order; rows that fill no step are carried into the next window."""
    units = np.concatenate([sizes, np.ones((len(sizes), 1))], axis=1)  # the last column counts samples
    # Sums of the samples before each.
    before = np.concatenate([np.zeros((1, units.shape[1])), np.cumsum(units, axis=0)])
    rule = WindowRule(limits=limits, rows=settings.rows, least=settings.window)
    rows_of_windows, carried, start, number = [], np.arange(0), 0, 0
    while start < len(sizes):
        content = units[carried].sum(axis=0) - before[start]
        end = bisect.bisect_left(
            range(len(sizes)), True, start, key=lambda end: rule.is_full(end - start, content + before[end])
        )
        random = np.random.default_rng((settings.seed, number))
        members = np.concatenate([carried, np.arange(start, end)])
        window = form_window_steps(
            units[members], limits, algorithm, form_steps, settings.rows, random, more_windows=rows_wait
        )
        groups = dataclasses.replace(window.groups, members=members[window.groups.members])
        rows_of_windows.append(groups.take(window.steps.ravel()))
        carried = groups.take(window.leftover).members
        start, number = end, number + 1
    return concatenate_groups(rows_of_windows)


def values_by_modality(modalities: Sequence[str], values: Float[np.ndarray, " k"]) -> dict[str, float]:
    """The value of each modality by its name."""
    return dict(zip(modalities, values.tolist(), strict=True))
