"""What describes a generation of devices is checked, and those that are assumed to be like Hopper are."""

import dataclasses
import math

import numpy as np
import pytest

from configs.clusters import CLUSTERS
from configs.device_generations import AMPERE, AttentionRate
from sharding.costs.matmul_seconds import MatmulSizes, matmul_seconds

INVALID = [
    ({"multiprocessors": 0}, r"multiprocessors is 0; it must be positive and finite"),
    ({"inner_step": math.nan}, r"inner_step is nan; it must be positive and finite"),
    ({"l2_bandwidth": math.inf}, r"l2_bandwidth is inf; it must be positive and finite"),
    ({"multicast": -1}, r"multicast is -1; it must be positive"),
    ({"tile_latency": math.inf}, r"tile_latency is inf; it must be finite and not negative"),
    ({"tile_latency": -1e-9}, r"tile_latency is -1e-09; it must be finite and not negative"),
    ({"attention_block": math.nan}, r"attention_block is nan; it must be finite"),
    ({"loop_share": 0.0}, r"loop_share is 0\.0; it must be above 0 and at most 1"),
    ({"power_share": 1.5}, r"power_share is 1\.5; it must be above 0 and at most 1"),
    ({"power_share": math.nan}, r"power_share is nan; it must be above 0"),
    ({"tiles": ()}, r"tiles is \(\); it must be one pair"),
    (
        {"tiles": ((128, 128), (0, 128))},
        r"tiles is .*\(0, 128\)\); it must be one pair or several of rows and columns, all positive",
    ),
    ({"tiles": ((-128, 128),)}, r"tiles is .*-128.*; it must be one pair or several of rows and columns, all positive"),
    ({"tiles": ((128, math.nan),)}, r"tiles is .*nan.*; it must be one pair or several"),
    ({"attention": ()}, r"attention is \(\); it must have one rate"),
    ({"attention": AMPERE.attention[::-1]}, r"attention is .*; it must .* by increasing head_width"),
    ({"attention": AMPERE.attention[:1] * 2}, r"attention is .*; it must .* by increasing head_width"),
]


@pytest.mark.parametrize(("change", "message"), INVALID)
def test_what_no_device_has_is_refused(change, message):
    with pytest.raises(ValueError, match=f"^DeviceGeneration.{message}"):
        dataclasses.replace(AMPERE, **change)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ((0, 0.5, 0.5), "head_width is 0; it must be positive"),
        ((64, 1.5, 0.5), "forward is 1.5; it must be above 0 and at most 1"),
        ((64, 0.5, math.nan), "backward is nan; it must be above 0 and at most 1"),
    ],
)
def test_attention_rates_are_shares_of_the_peak(fields, message):
    with pytest.raises(ValueError, match=f"^AttentionRate.{message}"):
        AttentionRate(*fields)


def share_of_peak(name, *sizes):
    cluster = CLUSTERS[name]
    seconds = matmul_seconds(MatmulSizes(*(np.array(float(size)) for size in (*sizes, 1))), cluster, 2, 1e12)
    return 2 * math.prod(sizes) / float(seconds) / cluster.peak_flops


@pytest.mark.parametrize("name", ["h20", "b200", "gb200"])
@pytest.mark.parametrize("sizes", [(16384, 16384, 16384), (65536, 28672, 8192)])
def test_devices_without_measurements_reach_hoppers_share_in_large_matmuls(name, sizes):
    assert share_of_peak(name, *sizes) == pytest.approx(share_of_peak("h100", *sizes), rel=0.03)
