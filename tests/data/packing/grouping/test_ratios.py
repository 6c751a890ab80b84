import numpy as np
import pytest
from hypothesis import given, settings

from data.packing.grouping.algorithms import RandomGroups
from data.packing.grouping.groups import Groups
from data.packing.grouping.ratios import dist_ratio, pad_ratio
from tests.data.packing.grouping.draws import sized


def test_an_example_by_hand():
    sizes = np.array([[4.0, 0.0], [2.0, 0.0], [3.0, 0.0], [1.0, 5.0]])
    groups = Groups.from_lists([[0, 1, 2], [3]])
    np.testing.assert_allclose(pad_ratio(groups, sizes), [[(0 + 2 + 1) / 12, 0], [0, 0]])
    np.testing.assert_allclose(dist_ratio(groups.sums(sizes), np.array([[0, 1]])), [[8 / 18, 5 / 10]])


@given(sized())
@settings(deadline=None, max_examples=20)
def test_ratios_are_those_of_the_equations(drawn):
    sizes, capacity = drawn
    groups = RandomGroups(samples=3)(sizes, capacity, np.random.default_rng(0))
    for ratios, members in zip(pad_ratio(groups, sizes), groups, strict=True):
        for modality, ratio in enumerate(ratios):
            units = sizes[members, modality].tolist()
            padding = sum(max(units) - each for each in units)
            assert ratio == pytest.approx(padding / (max(units) * len(units)) if max(units) else 0, abs=1e-12)
    steps = np.arange(len(groups) // 2 * 2).reshape(-1, 2)
    totals = groups.sums(sizes)
    for ratios, step in zip(dist_ratio(totals, steps), steps, strict=True):
        for modality, ratio in enumerate(ratios):
            units = totals[step, modality].tolist()
            idle = sum(max(units) - each for each in units)
            assert ratio == pytest.approx(idle / (max(units) * len(units)) if max(units) else 0, abs=1e-12)
