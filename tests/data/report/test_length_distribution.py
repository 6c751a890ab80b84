import numpy as np
import pytest

from data.report.length_distribution import length_distribution
from sharding.html.numbers import nice_step


def test_distributions_cover_samples_that_have_any_units():
    distribution = length_distribution("tokens", np.array([0, 2, 2, 4, 8]))
    assert (distribution.share, distribution.mean, distribution.minimum, distribution.maximum) == (0.8, 4.0, 2, 8)
    assert distribution.percentiles == {50: 3.0, 90: pytest.approx(6.8), 99: pytest.approx(7.88)}
    assert distribution.edges == (2, 3, 4, 5, 6, 7, 8, 9) and distribution.counts == (2, 0, 1, 0, 0, 0, 1)
    assert distribution.beyond == 0


@pytest.mark.parametrize("units", [np.arange(1, 1001), np.exp(np.linspace(0, 9, 500)).astype(int)])
def test_histograms_contain_every_sample_in_few_bars_of_one_round_width(units):
    distribution = length_distribution("tokens", units)
    assert (
        sum(distribution.counts) + distribution.beyond == len(units)
        and len(distribution.counts) == len(distribution.edges) - 1 <= 32
    )
    (width,) = set(np.diff(distribution.edges).tolist())
    assert width == nice_step(width, 1) and distribution.edges[0] % width == 0


def test_a_few_long_samples_do_not_flatten_a_histogram():
    units = np.append(np.tile(np.arange(50, 150), 10), [90_000, 100_000])
    distribution = length_distribution("tokens", units)
    assert (distribution.beyond, distribution.maximum, distribution.edges[-1]) == (2, 100_000, 150)
    assert sum(count > 0 for count in distribution.counts) == len(distribution.counts) >= 20
