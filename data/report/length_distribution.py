"""Distribution of the sizes of samples: percentiles, and a histogram that a few long samples cannot flatten.

A description has one for each kind of units.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np
from jaxtyping import Int

from sharding.html.numbers import nice_step

PERCENTILES = (50, 90, 99)

_MAX_BARS = 30
_CUT_PERCENTILE = 99
_FAR_BEYOND = 2.0  # longest length in 99th percentiles from which on the histogram ends at that percentile


@dataclasses.dataclass(frozen=True, kw_only=True)
class LengthDistribution:
    """Distribution of the units of the samples that have any.

    Attributes:
        name: Name of the units: `images` are generated, `encoder_images` and `encoder_clips` are model inputs.
        share: Share of the samples that have any.
        mean: Mean number of units of the samples that have any, as of the following fields.
        minimum: Smallest number of units.
        maximum: Largest number of units.
        percentiles: Percentiles of the numbers of units, by the number in a hundred.
        edges: Edges of the histogram's bars, all of the same width.
        counts: counts[i] samples have from edges[i] to below edges[i + 1] units.
        beyond: Samples that have more, which would flatten the histogram: at most one in a hundred.
    """

    name: str
    share: float
    mean: float
    minimum: int
    maximum: int
    percentiles: Mapping[int, float]
    edges: tuple[int, ...]
    counts: tuple[int, ...]
    beyond: int


def length_distribution(name: str, units: Int[np.ndarray, " n"]) -> LengthDistribution:
    """The distribution of the samples that have any units; there must be one.

    Args:
        name: Name of the units.
        units: Units of every sample.
    """
    positive = units[units > 0]
    percentiles = np.percentile(positive, PERCENTILES).tolist()
    edges = _bar_edges(positive)
    counts = np.diff(np.searchsorted(np.sort(positive), edges)).tolist()
    return LengthDistribution(
        name=name,
        share=len(positive) / len(units),
        mean=float(positive.mean()),
        minimum=int(positive.min()),
        maximum=int(positive.max()),
        percentiles=dict(zip(PERCENTILES, percentiles, strict=True)),
        edges=tuple(edges.tolist()),
        counts=tuple(counts),
        beyond=len(positive) - sum(counts),
    )


def _bar_edges(units: Int[np.ndarray, " n"]) -> Int[np.ndarray, " edges"]:
    """Edges of a histogram: multiples of 1, 2 or 5 times a power of ten.

    They end at the 99th percentile if the longest samples have more than twice as many units.
    """
    smallest, largest = int(units.min()), int(units.max())
    percentile = int(np.percentile(units, _CUT_PERCENTILE))
    end = percentile if largest > _FAR_BEYOND * percentile else largest
    width = max(1, round(nice_step(end - smallest + 1, _MAX_BARS)))
    return np.arange(smallest // width, end // width + 2) * width
