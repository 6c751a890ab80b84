"""The benchmark of how full rows are, on few samples."""

import numpy as np

from benchmarks.balancing import fill


def test_fill_and_evenness_are_those_of_hand_made_rows():
    samples = fill.RowSamples("", np.tile([[6.0], [4.0]], (8, 1)), np.array([10.0, np.inf]))
    for policy in ("post_balanced", "first_fit"):
        assert fill.fill_and_evenness(samples, 2, policy) == (1.0, 1.0)


def test_rows_are_as_full_as_the_goal_asks():
    for samples in (fill.quickstart(1500), *fill.described(1500)):
        fills, evenness = fill.fill_rows(samples, 8)
        assert fills["met"] and fills["value"] <= 1 <= evenness["value"]
