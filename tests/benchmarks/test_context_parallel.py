"""The cuts of rows that the benchmark compares, and what their ranks compute."""

import numpy as np
import pytest

from benchmarks.context_parallel.blocks import CUTS, blocks_of_ranks, contiguous, packed_rows


@pytest.mark.parametrize("name", CUTS)
def test_a_cut_gives_every_position_to_one_rank_and_computes_each_pair_once(name):
    places = CUTS[name](1024, 4)
    assert places.shape == (4, 256)
    np.testing.assert_array_equal(np.sort(places, axis=None), np.arange(1024))
    segments = np.repeat([1, 2], [320, 704])[None].astype(np.int32)
    assert blocks_of_ranks(segments, places).sum() == 5 * 6 // 2 + 11 * 12 // 2


def test_contiguous_parts_of_one_causal_segment_are_as_uneven_as_its_triangle():
    blocks = blocks_of_ranks(np.ones((1, 1024), np.int32), contiguous(1024, 4)).sum(axis=2)[0]
    assert blocks.tolist() == [10, 26, 42, 58]


def test_rows_are_filled_with_whole_samples():
    segments = packed_rows(8, 8192)
    assert (segments[:, 0] > 0).all() and all((np.diff(row[row > 0]) >= 0).all() for row in segments)
    assert np.mean(segments == 0) < 0.1
