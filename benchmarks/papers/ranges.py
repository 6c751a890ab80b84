"""Figures of simulated steps with their ranges, by the errors of simulated steps on published runs.

A step's range is the project's (`sharding.costs.published_errors.step_range`). The ratio of two steps has a range of
its own: the costs err on both, and much alike where they are of one family, so it is that of the ratios of two errors.
"""

import itertools
from collections.abc import Iterable

import numpy as np

from benchmarks.papers.paper_rows import Band, Figure, exactly
from sharding.costs.published_errors import QUANTILES, Family, published_errors, step_range
from sharding.simulation.timeline import Timeline


def step_figure(seconds: float, families: Iterable[Family], scale: float = 1.0) -> Figure:
    """What is proportional to a step: its seconds, or GPU-days with `scale` GPU-days a second."""
    least, most, _ = step_range(seconds, families)
    return Figure("simulated", exactly(seconds * scale), Band(least * scale, most * scale))


def rate_figure(rates: Band, seconds: float, families: Iterable[Family]) -> Figure:
    """What a step of so many seconds does a second: MFU by both countings, or tokens a second."""
    least, most, _ = step_range(seconds, families)
    return Figure("simulated", rates, Band(rates.least * seconds / most, rates.most * seconds / least))


def mfu_figure(timeline: Timeline) -> Figure:
    """The MFU of a simulated step, by both countings of causal squares."""
    return rate_figure(Band(timeline.mfu, timeline.mfu_whole_squares), timeline.step, timeline.error_families)


def throughput_figure(timeline: Timeline) -> Figure:
    """Backbone tokens a second of a simulated step."""
    return rate_figure(exactly(timeline.tokens_per_second), timeline.step, timeline.error_families)


def seconds_figure(timeline: Timeline) -> Figure:
    """Seconds of a simulated step."""
    return step_figure(timeline.step, timeline.error_families)


def ratio_figure(value: float, numerator: Iterable[Family], denominator: Iterable[Family]) -> Figure:
    """The ratio of two simulated throughputs.

    Args:
        value: The simulated ratio.
        numerator: Families of the step whose throughput is divided.
        denominator: Families of the step by whose throughput it is divided.
    """
    factors = [_quantiles_of_ratios(*pair) for pair in _family_pairs(tuple(numerator), tuple(denominator))]
    least, most = min(factor.least for factor in factors), max(factor.most for factor in factors)
    return Figure("simulated", exactly(value), Band(value * least, value * most))


def gain_figure(faster: Timeline, slower: Timeline) -> Figure:
    """Throughput of a step over another's, in backbone tokens a second."""
    value = faster.tokens_per_second / slower.tokens_per_second
    return ratio_figure(value, faster.error_families, slower.error_families)


def _family_pairs(first: tuple[Family, ...], second: tuple[Family, ...]) -> list[tuple[Family, Family]]:
    """Families of two steps whose errors meet: each with itself, and with all others where they have not the same."""
    if set(first) == set(second):
        return [(family, family) for family in first]
    return list(itertools.product(first, second))


def _quantiles_of_ratios(first: Family, second: Family) -> Band:
    """By what the ratio of two throughputs may differ: of (1 + error) of two runs, one of each family."""
    errors = [1 + np.array([*published_errors()[family].values()]) for family in (first, second)]
    ratios = np.divide.outer(*errors)
    if first == second:
        ratios = ratios[~np.eye(len(ratios), dtype=bool)]
    return Band(*map(float, np.quantile(ratios, QUANTILES)))


def share_figure(share: float, families: Iterable[Family]) -> Figure:
    """A share of a simulated step, whose parts err as the whole or otherwise: a ratio that ends at 1."""
    figure = ratio_figure(share, families := tuple(families), families)
    assert figure.range is not None
    return figure._replace(range=Band(figure.range.least, min(figure.range.most, 1.0)))
