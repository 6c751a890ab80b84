"""What each policy makes of the same samples: padding, idle instances, and what static shapes waste."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import Float

from data.grouping.groups import Groups, joined
from data.grouping.policies import DeviceGroups, Policy, RandomBatches, SortedBatches
from data.grouping.ratios import dist_ratio, pad_ratio
from data.grouping.windows import form_window
from data.groupings import GROUPINGS, Forming, in_order

PADDED: dict[str, Callable[[int, int], Policy]] = {
    "random": lambda samples, rows: RandomBatches(samples=samples),
    "sorted": lambda samples, rows: SortedBatches(samples=samples, modality=0),
    "device_group": lambda samples, rows: DeviceGroups(samples=samples, modality=0, devices=rows),
}
"""Batches of so many samples, each padded to the longest, for steps of so many rows: before any balancing."""


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
    return (*(_padded_outcome(name, samples, sizes, len(limits), setting) for name in PADDED), *packed)


def packed_outcome(
    name: str, sizes: Float[np.ndarray, "n k"], limits: Float[np.ndarray, " limits"], setting: Setting
) -> Outcome:
    """What a policy of `GROUPINGS` comes to; arguments as of `compare`."""
    grouping = GROUPINGS[name]
    rows = _rows(grouping.rows(limits, setting.rows), grouping.steps, sizes, limits, setting, waits=True)
    units = rows.sums(sizes)
    return _outcome(name, rows, setting, units, units, limits[:-1], None)


def _padded_outcome(name: str, samples: int, sizes: Float[np.ndarray, "n k"], limits: int, setting: Setting) -> Outcome:
    """What batches of so many samples come to; nothing limits them, so that none waits to be filled."""
    policy = PADDED[name](samples, setting.rows)
    rows = _rows(policy, in_order, sizes, np.full(limits, np.inf), setting, waits=False)
    padded = rows.largest(sizes) * rows.lengths[:, None]
    shape = padded.max(axis=0, initial=0.0)
    return _outcome(name, rows, setting, rows.sums(sizes), padded, shape, pad_ratio(rows, sizes))


def _outcome(
    name: str,
    rows: Groups,
    setting: Setting,
    units: Float[np.ndarray, "g k"],
    computed: Float[np.ndarray, "g k"],
    shape: Float[np.ndarray, " k"],
    pad: Float[np.ndarray, "g k"] | None,
) -> Outcome:
    """Of every row the units, and those with padding between samples; the shape that all rows share."""
    if not len(rows):
        return Outcome(name, pad is not None, 0, 0.0, 0, {}, {}, {}, None)
    named = functools.partial(by_name, setting.modalities)
    dist = dist_ratio(computed, np.arange(len(rows)).reshape(-1, setting.rows))
    real, work = units.mean(axis=0), np.array(setting.work)
    return Outcome(
        policy=name,
        padded=pad is not None,
        rows=len(rows),
        samples=float(rows.lengths.mean()),
        most=int(rows.lengths.max()),
        pad=named(np.zeros_like(real) if pad is None else pad.mean(axis=0)),
        dist=named(dist.mean(axis=0)),
        unfilled=named(1 - np.divide(real, shape, out=np.ones_like(real), where=shape > 0)),
        waste=float(1 - (work * real).sum() / (work * shape).sum()),
    )


def _rows(
    policy: Policy,
    form: Forming,
    sizes: Float[np.ndarray, "n k"],
    limits: Float[np.ndarray, " limits"],
    setting: Setting,
    waits: bool,
) -> Groups:
    """The rows of whole steps, step behind step, window behind window; rows that are left wait for the next window."""
    counted = np.concatenate([sizes, np.ones((len(sizes), 1))], axis=1)
    found, carried = [], np.arange(0)
    for number, start in enumerate(range(0, len(sizes), setting.window)):
        random = np.random.default_rng((setting.seed, number))
        members = np.concatenate([carried, np.arange(start, min(start + setting.window, len(sizes)))])
        window = form_window(counted[members], limits, policy, form, setting.rows, random, waits)
        groups = dataclasses.replace(window.groups, members=members[window.groups.members])
        found.append(groups.take(window.steps.ravel()))
        carried = groups.take(window.left).members
    return joined(found)


def by_name(modalities: Sequence[str], values: Float[np.ndarray, " k"]) -> dict[str, float]:
    """A value for each modality."""
    return dict(zip(modalities, values.tolist(), strict=True))
