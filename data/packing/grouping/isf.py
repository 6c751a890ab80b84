"""Iterative sampling and filtering (ISF): OmniBal's grouping algorithm and its capacities (arXiv 2407.20761).

Groups are drawn at random until most of them are nearly full (section 4.1). Q is the capacity of a group, Q' the size
from which a group is accepted.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from data.errors import DataError
from data.packing.grouping.bin_packing import as_columns, next_fit
from data.packing.grouping.groups import Groups, exceeds_capacity

SLACK = 128.0
"""Q - Q' in the reference modality, the paper's text tokens."""

_MAX_EVALUATED = 2**14  # samples on which candidate capacities are evaluated
_CANDIDATES = 24
_MAX_ROOM = 2.0  # largest candidate capacity, relative to groups of the requested size
_ROUNDS = 10


def sample_and_filter(
    columns: Float[np.ndarray, "k n"],
    capacity: Float[np.ndarray, " k"],
    threshold: Float[np.ndarray, " k"],
    rounds: int,
    samples: Int[np.ndarray, " m"],
    random: np.random.Generator,
) -> tuple[Groups, Int[np.ndarray, " remaining"]]:
    """Alternates algorithms 1 and 2 of arXiv 2407.20761: sampling and filtering.

    Each round puts the remaining samples in random order, closes a group where the next sample exceeds the capacity
    in any modality, and accepts the groups that reach the threshold in at least one. The published sampling stage
    never adds its last group to the candidates and thus loses its samples; here it is a candidate like the others.

    Args:
        columns: Units of every sample, by modality.
        capacity: Q; no sample of `samples` may exceed it.
        threshold: Q'.
        rounds: T, the largest number of rounds.
        samples: Samples to group.
        random: Source of the orders.

    Returns:
        The accepted groups, and the samples in none of them.
    """
    members, lengths = [samples[:0]], [samples[:0]]
    remaining = samples
    for _ in range(rounds):
        if not len(remaining):
            break
        order = random.permutation(remaining)
        filled = next_fit(columns, capacity, order)
        accepted = (filled.sums >= threshold[:, None]).any(axis=0)
        in_accepted = np.repeat(accepted, filled.lengths)
        members.append(order[in_accepted])
        lengths.append(filled.lengths[accepted])
        remaining = order[~in_accepted]
    return Groups.from_lengths(np.concatenate(members), np.concatenate(lengths)), remaining


def published_isf_capacity(
    sizes: Float[np.ndarray, "n k"], reference: int, longest: float | None = None, slack: float = SLACK
) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, " k"]]:
    """Q and Q' as published (section 5.1), from one pass over the sizes.

    In the reference modality, Q is the longest sample. In every other modality, Q is the average number of units that
    come with that many reference units, rounded, at least 1. Q' is Q, reduced by `slack` in the reference modality.

    Args:
        sizes: Units of every sample, by modality, such as vision units and text tokens.
        reference: Index of the reference modality, text.
        longest: Q of the reference modality, instead of the longest sample, which may be an outlier.
        slack: See `SLACK`.

    Returns:
        Q and Q', by modality.

    Raises:
        DataError: No samples, invalid sizes, or no reference units.
    """
    totals = _totals(sizes, reference)
    longest_sample = float(sizes[:, reference].max()) if longest is None else longest
    if longest_sample <= slack:
        raise DataError(f"groups of {longest_sample} units cannot be accepted from {slack} units below; lower slack")
    capacity = np.maximum(np.rint(longest_sample * totals / totals[reference]), 1.0)
    capacity[reference] = longest_sample
    return capacity, _threshold(capacity, reference, slack)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class IsfCapacity:
    """A capacity and the result of grouping by it.

    Attributes:
        capacity: Q, by modality.
        threshold: Q', by modality.
        samples: Average number of samples of a group.
        max_samples: Largest number of samples of a group.
        padding_share: Share of the capacity that groups leave empty, by modality: the padding of batches of static
            shape, and on average an upper bound of the dist ratio.
        oversized: Share of all samples that exceed the capacity.
    """

    capacity: Float[np.ndarray, " k"]
    threshold: Float[np.ndarray, " k"]
    samples: float
    max_samples: int
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
    """The Q and Q' with the least padding for groups of `samples` to `samples + 1` samples on average.

    The paper gives its Q for one data set only. Here candidates in the proportions of the data, from one that just
    holds the requested samples to twice as much, are evaluated by iterative sampling and filtering of up to 2^14
    samples.

    Args:
        sizes: Units of every sample, by modality.
        samples: Requested average number of samples of a group.
        multiples: Capacities are whole multiples of these, by modality.
        reference: Index of the modality to which `slack` applies.
        random: Source of the evaluated samples and their groups.
        slack: See `SLACK`.

    Raises:
        DataError: As `published_isf_capacity`; invalid multiples; or no capacity gives such groups.
    """
    totals = _totals(sizes, reference)
    if len(multiples) != len(totals) or min(multiples) <= 0 or samples < 1:
        raise DataError(
            f"groups of {samples} samples in multiples of {tuple(multiples)}; give a positive one for each modality"
        )
    units = np.array(multiples, float)
    grid = totals / len(sizes) * samples * np.linspace(1, _MAX_ROOM, _CANDIDATES)[:, None]
    candidates = np.unique(np.maximum(np.rint(grid / units), 1) * units, axis=0)
    candidates = candidates[candidates[:, reference] > slack]
    evaluated = sizes[random.permutation(len(sizes))[:_MAX_EVALUATED]]
    choices = [
        evaluate_isf_capacity(evaluated, capacity, _threshold(capacity, reference, slack), random)
        for capacity in candidates
    ]
    fitting = [choice for choice in choices if samples <= choice.samples <= samples + 1]
    if not fitting:
        reached = sorted(choice.samples for choice in choices) or [math.nan]
        raise DataError(
            f"no capacity gives groups of {samples} to {samples + 1} samples, but of {reached[0]:.3g} to "
            f"{reached[-1]:.3g}; choose finer multiples than {tuple(multiples)}, other groups or a lower slack"
        )
    best = min(fitting, key=lambda choice: float(choice.padding_share.sum()) + choice.oversized)
    return dataclasses.replace(best, oversized=float(exceeds_capacity(sizes, best.capacity).mean()))


def evaluate_isf_capacity(
    sizes: Float[np.ndarray, "n k"],
    capacity: Float[np.ndarray, " k"],
    threshold: Float[np.ndarray, " k"],
    random: np.random.Generator,
) -> IsfCapacity:
    """The result of iterative sampling and filtering of all samples that a group holds, by Q and Q'."""
    too_large = exceeds_capacity(sizes, capacity)
    samples = np.flatnonzero(~too_large)
    columns = as_columns(sizes, capacity)
    accepted, remaining = sample_and_filter(columns, capacity, threshold, _ROUNDS, samples, random)
    lengths = np.concatenate([accepted.lengths, next_fit(columns, capacity, remaining).lengths])
    count = max(len(lengths), 1)
    return IsfCapacity(
        capacity=capacity,
        threshold=threshold,
        samples=len(samples) / count,
        max_samples=int(lengths.max(initial=0)),
        padding_share=1 - columns[:, samples].sum(axis=1, dtype=np.float64) / (capacity * count),
        oversized=float(too_large.mean()),
    )


def _threshold(capacity: Float[np.ndarray, " k"], reference: int, slack: float) -> Float[np.ndarray, " k"]:
    threshold = capacity.copy()
    threshold[reference] -= slack
    return threshold


def _totals(sizes: Float[np.ndarray, "n k"], reference: int) -> Float[np.ndarray, " k"]:
    """Total units of all samples, by modality."""
    if not 0 <= reference < sizes.shape[1]:
        raise DataError(f"modality {reference} of {sizes.shape[1]}; count from 0")
    exceeds_capacity(sizes, np.full(sizes.shape[1], np.inf))
    totals = sizes.sum(axis=0)
    if not totals[reference] > 0:
        raise DataError(
            f"{len(sizes)} samples have no units of modality {reference}; choose a reference modality that they have"
        )
    return totals
