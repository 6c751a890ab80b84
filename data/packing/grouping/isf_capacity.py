"""How much a group should hold: Q and Q' from the sizes of a data set."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from data.errors import DataError
from data.packing.grouping.isf import sample_and_filter
from data.packing.grouping.next_fit import as_columns, next_fit
from data.packing.grouping.oversized import exceeds_capacity

SLACK = 128.0
"""Units below Q from which a group is accepted, in the modality of reference (the paper's text tokens)."""

_TRIED = 2**14  # samples on which capacities are tried
_CANDIDATES = 24
_ROOM = 2.0  # the largest capacity tried, in wanted groups
_ROUNDS = 10


def published_isf_capacity(
    sizes: Float[np.ndarray, "n k"], reference: int, longest: float | None = None, slack: float = SLACK
) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, " k"]]:
    """Q and Q' as the paper has them (arXiv 2407.20761, 5.1), from one pass over the sizes.

    In the modality of reference, Q is the longest sample. In each other it is what as many units of reference come
    with on average, to the nearest whole unit, at least 1. Q' is Q, but `slack` lower in the modality of reference.

    Args:
        sizes: Units of every sample, by modality, such as vision units and text tokens.
        reference: Number of the modality of reference, text.
        longest: Its Q, instead of the longest sample, which may be an exception.
        slack: See `SLACK`.

    Raises:
        DataError: No sample, sizes that are none, or no unit of reference.
    """
    totals = _totals(sizes, reference)
    most = float(sizes[:, reference].max()) if longest is None else longest
    if most <= slack:
        raise DataError(f"groups of {most} units cannot be accepted from {slack} units less; lower slack")
    capacity = np.maximum(np.rint(most * totals / totals[reference]), 1.0)
    capacity[reference] = most
    return capacity, _threshold(capacity, reference, slack)


@dataclasses.dataclass(frozen=True, eq=False)
class IsfCapacity:
    """A capacity, and what grouping by it came to.

    Attributes:
        capacity, threshold: Q and Q'.
        samples: Average samples of a group.
        padding_share: Share of the capacity that groups leave padding_share, by modality; what a dist ratio can be at most, on
            average, and the padding of batches of static shape.
        oversized: Share of all samples that exceed the capacity.
    """

    capacity: Float[np.ndarray, " k"]
    threshold: Float[np.ndarray, " k"]
    samples: float
    padding_share: Float[np.ndarray, " k"]
    oversized: float


def search_isf_capacity(
    sizes: Float[np.ndarray, "n k"],
    samples: float,
    multiples: Sequence[float],
    reference: int,
    random: np.random.Generator,
    slack: float = SLACK,
) -> IsfCapacity:
    """Q and Q' for groups of so many samples on average, or up to one more: those that leave least padding_share.

    The paper gives its Q for one data set only. Here capacities are tried in the proportions of the data, from one
    that just holds the samples wanted to twice that, by iterative sampling and filtering of some of the data.

    Args:
        sizes: Units of every sample, by modality.
        samples: Wanted on average in a group.
        multiples: Capacities are whole multiples of these, by modality.
        reference: Number of the modality to which `slack` belongs.
        random: Draws the samples tried, and their groups.
        slack: See `SLACK`.

    Raises:
        DataError: As `derive_capacity`, wrong multiples, or no capacity that gives such groups.
    """
    totals = _totals(sizes, reference)
    if len(multiples) != len(totals) or min(multiples) <= 0 or samples < 1:
        raise DataError(f"groups of {samples} samples in multiples of {tuple(multiples)}; give one above 0 a modality")
    units = np.array(multiples, float)
    grid = totals / len(sizes) * samples * np.linspace(1, _ROOM, _CANDIDATES)[:, None]
    candidates = np.unique(np.maximum(np.rint(grid / units), 1) * units, axis=0)
    candidates = candidates[candidates[:, reference] > slack]
    tried = sizes[random.permutation(len(sizes))[:_TRIED]]
    found = [_try(tried, capacity, _threshold(capacity, reference, slack), random) for capacity in candidates]
    fitting = [choice for choice in found if samples <= choice.samples <= samples + 1]
    if not fitting:
        reached = sorted(choice.samples for choice in found) or [math.nan]
        raise DataError(
            f"no capacity gives groups of {samples} to {samples + 1} samples, but of {reached[0]:.3g} to "
            f"{reached[-1]:.3g}; choose finer multiples than {tuple(multiples)}, other groups or a lower slack"
        )
    best = min(fitting, key=lambda choice: float(choice.padding_share.sum()) + choice.oversized)
    return dataclasses.replace(best, oversized=float(exceeds_capacity(sizes, best.capacity).mean()))


def _try(
    sizes: Float[np.ndarray, "n k"],
    capacity: Float[np.ndarray, " k"],
    threshold: Float[np.ndarray, " k"],
    random: np.random.Generator,
) -> IsfCapacity:
    too_large = exceeds_capacity(sizes, capacity)
    samples = np.flatnonzero(~too_large)
    columns = as_columns(sizes, capacity)
    accepted, rest = sample_and_filter(columns, capacity, threshold, _ROUNDS, samples, random)
    count = len(accepted) + len(next_fit(columns, capacity, rest).lengths)
    filled = columns[:, samples].sum(axis=1, dtype=np.float64) / (capacity * max(count, 1))
    return IsfCapacity(capacity, threshold, len(samples) / max(count, 1), 1 - filled, float(too_large.mean()))


def _threshold(capacity: Float[np.ndarray, " k"], reference: int, slack: float) -> Float[np.ndarray, " k"]:
    threshold = capacity.copy()
    threshold[reference] -= slack
    return threshold


def _totals(sizes: Float[np.ndarray, "n k"], reference: int) -> Float[np.ndarray, " k"]:
    """Units of all samples, by modality."""
    if not 0 <= reference < sizes.shape[1]:
        raise DataError(f"modality {reference} of {sizes.shape[1]}; count from 0")
    exceeds_capacity(sizes, np.full(sizes.shape[1], np.inf))
    totals = sizes.sum(axis=0)
    if not totals[reference] > 0:
        raise DataError(f"{len(sizes)} samples have no unit of modality {reference}; refer to one that they have")
    return totals
