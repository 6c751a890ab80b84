"""What each policy makes of the same samples: padding, idle instances, and what static shapes waste."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import Float

from data.packing.grouping.algorithms import DeviceBalancedGroups, GroupingAlgorithm, RandomGroups, SortedGroups
from data.packing.grouping.grouping_policies import GROUPING_POLICIES, FormSteps, consecutive_steps
from data.packing.grouping.groups import Groups, concatenate_groups
from data.packing.grouping.ratios import dist_ratio, pad_ratio
from data.packing.grouping.window_steps import form_window_steps

PADDED: dict[str, Callable[[int, int], GroupingAlgorithm]] = {
    "random": lambda samples, rows: RandomGroups(samples=samples),
    "sorted": lambda samples, rows: SortedGroups(samples=samples, modality=0),
    "device_group": lambda samples, rows: DeviceBalancedGroups(samples=samples, modality=0, devices=rows),
}
"""Batches of so many samples, each padded to the longest, for steps of so many rows: before any balancing."""


@dataclasses.dataclass(frozen=True)
class GroupingResult:
    """What a policy comes to; means over rows and steps, shares by modality.

    Attributes:
        policy: Its name.
        padded: Whether a row's samples are padded to its longest; else they are packed.
        rows: Rows formed; those that fill no step are left out, as training keeps them for later.
        samples: Of a row.
        most: Samples of the row that has most.
        pad: PadRatio: share of padding between the samples of a row; packing has none.
        dist: DistRatio: share of a step for which instances idle, one row each.
        unfilled: Share of padding where all rows have one shape: the capacity, or the largest of the padded batches.
        waste: The same over all modalities, by the work of their units.
    """

    policy: str
    padded: bool
    rows: int
    samples_per_row: float
    max_samples: int
    pad_ratio: Mapping[str, float]
    dist_ratio: Mapping[str, float]
    padding_share: Mapping[str, float]
    wasted_flops_share: float | None


@dataclasses.dataclass(frozen=True)
class GroupingSettings:
    """What samples are grouped for.

    Attributes:
        modalities: Names of the columns of sizes.
        work: What a unit of each costs; any unit of work.
        rows: Rows of a step.
        window: Samples that are grouped at once.
        seed: Of all policies, each anew.
    """

    modalities: tuple[str, ...]
    flops_per_unit: tuple[float, ...]
    rows: int
    window: int
    seed: int


def compare_grouping_policies(
    sizes: Float[np.ndarray, "n k"],
    limits: Float[np.ndarray, " limits"],
    setting: GroupingSettings,
) -> tuple[GroupingResult, ...]:
    """Padded baselines, then every policy that a configuration can name.

    The baselines' batches have as many samples as a row that is packed first-fit, so that they are as large.

    Args:
        sizes: Units of every sample, by modality; none exceeds the limits.
        limits: What a row holds of each modality, and at last of samples.
        setting: Names, work, rows.
    """
    packed = [evaluate_packing(name, sizes, limits, setting) for name in GROUPING_POLICIES]
    samples = max(1, int(packed[0].samples_per_row))
    return (*(_padded_outcome(name, samples, sizes, len(limits), setting) for name in PADDED), *packed)


def evaluate_packing(
    name: str, sizes: Float[np.ndarray, "n k"], limits: Float[np.ndarray, " limits"], setting: GroupingSettings
) -> GroupingResult:
    """What a policy of `GROUPINGS` comes to; arguments as of `compare`."""
    grouping = GROUPING_POLICIES[name]
    rows = _rows(grouping.make_algorithm(limits, setting.rows), grouping.form_steps, sizes, limits, setting, waits=True)
    units = rows.sums(sizes)
    return _outcome(name, rows, setting, units, units, limits[:-1], None)


def _padded_outcome(
    name: str, samples: int, sizes: Float[np.ndarray, "n k"], limits: int, setting: GroupingSettings
) -> GroupingResult:
    """What batches of so many samples come to; nothing limits them, so that none waits to be filled."""
    policy = PADDED[name](samples, setting.rows)
    rows = _rows(policy, consecutive_steps, sizes, np.full(limits, np.inf), setting, waits=False)
    padded = rows.largest(sizes) * rows.lengths[:, None]
    shape = padded.max(axis=0, initial=0.0)
    return _outcome(name, rows, setting, rows.sums(sizes), padded, shape, pad_ratio(rows, sizes))


def _outcome(
    name: str,
    rows: Groups,
    setting: GroupingSettings,
    units: Float[np.ndarray, "g k"],
    computed: Float[np.ndarray, "g k"],
    shape: Float[np.ndarray, " k"],
    pad: Float[np.ndarray, "g k"] | None,
) -> GroupingResult:
    """Of every row the units, and those with padding between samples; the shape that all rows share."""
    if not len(rows):
        return GroupingResult(name, pad is not None, 0, 0.0, 0, {}, {}, {}, None)
    named = functools.partial(by_name, setting.modalities)
    dist = dist_ratio(computed, np.arange(len(rows)).reshape(-1, setting.rows))
    real, work = units.mean(axis=0), np.array(setting.flops_per_unit)
    return GroupingResult(
        policy=name,
        padded=pad is not None,
        rows=len(rows),
        samples_per_row=float(rows.lengths.mean()),
        max_samples=int(rows.lengths.max()),
        pad_ratio=named(np.zeros_like(real) if pad is None else pad.mean(axis=0)),
        dist_ratio=named(dist.mean(axis=0)),
        padding_share=named(1 - np.divide(real, shape, out=np.ones_like(real), where=shape > 0)),
        wasted_flops_share=float(1 - (work * real).sum() / (work * shape).sum()),
    )


def _rows(
    policy: GroupingAlgorithm,
    form: FormSteps,
    sizes: Float[np.ndarray, "n k"],
    limits: Float[np.ndarray, " limits"],
    setting: GroupingSettings,
    waits: bool,
) -> Groups:
    """The rows of whole steps, step behind step, window behind window; rows that are left wait for the next window."""
    counted = np.concatenate([sizes, np.ones((len(sizes), 1))], axis=1)
    found, carried = [], np.arange(0)
    for number, start in enumerate(range(0, len(sizes), setting.window)):
        random = np.random.default_rng((setting.seed, number))
        members = np.concatenate([carried, np.arange(start, min(start + setting.window, len(sizes)))])
        window = form_window_steps(counted[members], limits, policy, form, setting.rows, random, waits)
        groups = dataclasses.replace(window.groups, members=members[window.groups.members])
        found.append(groups.take(window.steps.ravel()))
        carried = groups.take(window.leftover).members
    return concatenate_groups(found)


def by_name(modalities: Sequence[str], values: Float[np.ndarray, " k"]) -> dict[str, float]:
    """A value for each modality."""
    return dict(zip(modalities, values.tolist(), strict=True))
