"""Matmuls by shape: the choice of tile against all of them by hand, bounds, and what is published of one GPU."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.clusters import CLUSTERS
from sharding.costs.matmul_seconds import MatmulSizes, matmul_seconds

GPUS = ("a100", "h100")
BANDWIDTH = 1.6e12
SIZES = st.integers(1, 30_000)


def seconds(cluster, rows, outer, inner, count=1):
    sizes = MatmulSizes(*(np.asarray(size, float) for size in (rows, outer, inner, count)))
    return matmul_seconds(sizes, cluster, 2, BANDWIDTH)


def by_hand(cluster, rows, outer, inner, count):
    """The best of all tiles and splits, one at a time."""
    device, candidates = cluster.generation, []
    one = device.multiprocessors
    for (height, width), split in itertools.product(device.tiles, (1, 2, 4, 8)):
        arithmetic = 2 * height * width / (cluster.peak_flops * device.loop_share / one)
        read = min(height, width) + max(height, width) / device.multicast
        loads = 2 * read / (device.l2_bandwidth / one)
        loop = math.ceil(inner / split / device.inner_step) * device.inner_step * max(arithmetic, loads)
        fill = 2 * device.tile_latency + device.inner_step * loads
        epilogue = height * width * (2 if split == 1 else 4) / (device.l2_bandwidth / one)
        waves = math.ceil(count * math.ceil(rows / height) * math.ceil(outer / width) * split / one)
        summed = (4 * split + 2) * count * rows * outer / BANDWIDTH if split > 1 else 0
        if device.overlaps_tiles:
            candidates.append(waves * max(loop, epilogue) + fill + epilogue + summed)
        else:
            candidates.append(waves * (fill + loop + epilogue) + summed)
    share = 2 * rows * outer * inner * count / min(candidates) / cluster.peak_flops
    return min(candidates) * max(1, (share / device.power_share) ** (1 / 3))


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(GPUS), SIZES, SIZES, SIZES, st.integers(1, 64))
def test_the_best_of_all_tiles_and_splits_is_taken(name, rows, outer, inner, count):
    cluster = CLUSTERS[name]
    expected = by_hand(cluster, rows, outer, inner, count)
    assert seconds(cluster, rows, outer, inner, count) == pytest.approx(expected, rel=1e-9)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(GPUS), SIZES, SIZES, SIZES, st.integers(0, 2), st.integers(1, 5_000))
def test_larger_matmuls_take_no_less_and_none_exceeds_the_peak(name, rows, outer, inner, side, more):
    cluster, size = CLUSTERS[name], [rows, outer, inner]
    larger = [value + more * (place == side) for place, value in enumerate(size)]
    least, most = seconds(cluster, *size), seconds(cluster, *larger)
    assert most >= least * (1 - 1e-12)
    assert 2 * rows * outer * inner / least <= cluster.peak_flops


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(GPUS), st.lists(SIZES, min_size=1, max_size=5), SIZES, SIZES)
def test_arrays_of_sizes_give_what_each_gives(name, rows, outer, inner):
    together = seconds(CLUSTERS[name], rows, outer, inner)
    np.testing.assert_allclose(together, [seconds(CLUSTERS[name], count, outer, inner) for count in rows])


def test_one_more_tile_than_multiprocessors_takes_another_wave():
    """NVIDIA's guide to matrix multiplication: 108 tiles fill an A100 once, 109 take as long as 216."""
    cluster, inner = CLUSTERS["a100"], 512
    full, one_more, two = (seconds(cluster, 256, 128 * tiles, inner) for tiles in (108, 109, 216))
    assert one_more > 1.2 * full and two <= 2.01 * full


def test_large_matmuls_reach_what_is_published_and_few_rows_do_not():
    """257 TFLOP/s of an A100 at 8192 with normally distributed numbers; 80% of an H100 at its best shape."""
    a100, h100 = CLUSTERS["a100"], CLUSTERS["h100"]
    assert 2 * 8192**3 / seconds(a100, 8192, 8192, 8192) == pytest.approx(257e12, rel=0.01)
    assert 2 * 2048**2 * 13312 / seconds(h100, 2048, 2048, 13312) == pytest.approx(0.803 * 989e12, rel=0.02)
    shares = [2 * rows * 3200**2 / seconds(a100, rows, 3200, 3200) / 312e12 for rows in (16, 64, 256, 4096)]
    assert shares == sorted(shares) and shares[0] < 0.2


def test_a_split_helps_where_tiles_are_few_and_sums_are_long():
    """The gradient of narrow weights: 4 output tiles, sums over all tokens."""
    cluster = CLUSTERS["a100"]
    flops = 2 * 256 * 256 * 65_536
    assert flops / seconds(cluster, 256, 256, 65_536) > 4 / 108 * cluster.peak_flops
