"""What each policy makes of the same samples: padding, idle instances, and what static shapes waste."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from jaxtyping import Float, Int

from data.grouping.groups import Groups
from data.grouping.policies import DeviceGroups, Policy, RandomBatches, SortedBatches
from data.grouping.ratios import dist_ratio, pad_ratio
from data.groupings import GROUPINGS, Forming, in_order

PADDED: dict[str, Callable[[int, int], Policy]] = {
    "random": lambda samples, rows: RandomBatches(samples=samples),
    "sorted": lambda samples, rows: SortedBatches(samples=samples, modality=0),
    "device_group": lambda samples, rows: DeviceGroups(samples=samples, modality=0, devices=rows),
}
"""Batches of so many samples, each padded to the longest, for steps of so many rows: before any balancing."""


Formed = tuple[Groups, Int[np.ndarray, "_ _"], Float[np.ndarray, "_ k"]]
"""Groups of some samples, the steps that they form, and the samples' sizes."""


@dataclasses.dataclass(frozen=True)
class Outcome:
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
    samples: float
    most: int
    pad: Mapping[str, float]
    dist: Mapping[str, float]
    unfilled: Mapping[str, float]
    waste: float | None


@dataclasses.dataclass(frozen=True)
class Setting:
    """What samples are grouped for.

    Attributes:
        modalities: Names of the columns of sizes.
        work: What a unit of each costs; any unit of work.
        rows: Rows of a step.
        window: Samples that are grouped at once.
        seed: Of all policies, each anew.
    """

    modalities: tuple[str, ...]
    work: tuple[float, ...]
    rows: int
    window: int
    seed: int


def compare(
    sizes: Float[np.ndarray, "n k"],
    limits: Float[np.ndarray, " limits"],
    setting: Setting,
) -> tuple[Outcome, ...]:
    """Padded baselines, then every policy that a configuration can name.

    The baselines' batches have as many samples as a row that is packed first-fit, so that they are as large.

    Args:
        sizes: Units of every sample, by modality; none exceeds the limits.
        limits: What a row holds of each modality, and at last of samples.
        setting: Names, work, rows.
    """
    packed = [packed_outcome(name, sizes, limits, setting) for name in GROUPINGS]
    samples = max(1, int(packed[0].samples))
    padded = []
    for name, policy in PADDED.items():
        endless = np.full(len(limits), np.inf)
        formed = list(_formed(policy(samples, setting.rows), in_order, sizes, endless, setting))
        padded.append(_padded_outcome(name, formed, setting))
    return (*padded, *packed)


def packed_outcome(
    name: str, sizes: Float[np.ndarray, "n k"], limits: Float[np.ndarray, " limits"], setting: Setting
) -> Outcome:
    """What a policy of `GROUPINGS` comes to; arguments as of `compare`."""
    grouping = GROUPINGS[name]
    formed = list(_formed(grouping.rows(limits, setting.rows), grouping.steps, sizes, limits, setting))
    units = [groups.sums(part) for groups, _, part in formed]
    return _outcome(name, formed, setting, units, units, limits[:-1], None)


def _padded_outcome(name: str, formed: Sequence[Formed], setting: Setting) -> Outcome:
    units = [groups.sums(part) for groups, _, part in formed]
    padded = [groups.largest(part) * groups.lengths[:, None] for groups, _, part in formed]
    shape = np.concatenate(padded).max(axis=0, initial=0.0)
    pad = np.concatenate([pad_ratio(groups, part) for groups, _, part in formed])
    return _outcome(name, formed, setting, units, padded, shape, pad)


def _outcome(
    name: str,
    formed: Sequence[Formed],
    setting: Setting,
    units: Sequence[Float[np.ndarray, "_ k"]],
    computed: Sequence[Float[np.ndarray, "_ k"]],
    shape: Float[np.ndarray, " k"],
    pad: Float[np.ndarray, "g k"] | None,
) -> Outcome:
    """Of every window the rows' units, and those with padding between samples; the shape that all rows share."""
    named = functools.partial(_by_name, setting.modalities)
    lengths = np.concatenate([groups.lengths for groups, _, _ in formed])
    count = len(lengths)
    if not count:
        return Outcome(name, pad is not None, 0, 0.0, 0, {}, {}, {}, None)
    dist = np.concatenate([dist_ratio(each, steps) for each, (_, steps, _) in zip(computed, formed, strict=True)])
    real, work = np.concatenate(units).mean(axis=0), np.array(setting.work)
    return Outcome(
        policy=name,
        padded=pad is not None,
        rows=count,
        samples=float(lengths.mean()),
        most=int(lengths.max()),
        pad=named(np.zeros_like(real) if pad is None else pad.mean(axis=0)),
        dist=named(dist.mean(axis=0)),
        unfilled=named(1 - np.divide(real, shape, out=np.ones_like(real), where=shape > 0)),
        waste=float(1 - (work * real).sum() / (work * shape).sum()),
    )


def _formed(
    policy: Policy,
    form: Forming,
    sizes: Float[np.ndarray, "n k"],
    limits: Float[np.ndarray, " limits"],
    setting: Setting,
) -> Iterator[Formed]:
    """Of every window: the rows of whole steps, the steps, and the sizes of the window's samples."""
    for number, start in enumerate(range(0, max(len(sizes), 1), setting.window)):
        random = np.random.default_rng((setting.seed, number))
        part = sizes[start : start + setting.window]
        counted = np.concatenate([part, np.ones((len(part), 1))], axis=1)
        groups = policy(counted, limits, random)
        steps, _ = form(groups, counted, setting.rows, random)
        yield groups.take(steps.ravel()), np.arange(steps.size).reshape(steps.shape), part


def _by_name(modalities: Sequence[str], values: Float[np.ndarray, " k"]) -> dict[str, float]:
    return dict(zip(modalities, values.tolist(), strict=True))
