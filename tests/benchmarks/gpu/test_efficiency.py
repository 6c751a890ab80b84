"""Measured rates of a device, as the description of a cluster that plans read."""

import dataclasses
import math

import pytest

from benchmarks.gpu.efficiency import device_cluster, measured_cluster, simulated_seconds
from benchmarks.gpu.hardware_file import cluster_gin
from configs.clusters import CLUSTERS
from mmjax.planning.cluster_files import read_cluster


@pytest.mark.parametrize("name", ["h100", "h200", "a100", "b200"])
def test_a_cluster_is_read_back_as_it_was_written(name, tmp_path):
    file = tmp_path / "device.gin"
    named = dataclasses.replace(CLUSTERS[name], name="mine")  # a name of mmjax's clusters is refused
    file.write_text(cluster_gin(named))
    assert read_cluster(str(file)) == named


def test_the_measured_rates_replace_the_published_ones():
    h200 = device_cluster("NVIDIA H200")
    assert h200 is CLUSTERS["h200"] and device_cluster("cpu") is not CLUSTERS["h200"]
    both = 3.5 / (1.0 / 600e12 + 2.5 / 500e12)  # forward and backward one after the other
    measured = measured_cluster(h200, 700e12, [(64, 400e12, 380e12), (128, 600e12, both)])
    generation = measured.generation
    assert generation.power_share == 700e12 / h200.peak_flops
    assert [rate.head_width for rate in generation.attention] == [64, 128]
    assert generation.attention[1].forward == pytest.approx(600e12 / h200.peak_flops)
    assert generation.attention[1].backward == pytest.approx(500e12 / h200.peak_flops)
    assert generation.tiles == h200.generation.tiles


def test_simulated_seconds_never_beat_the_data_sheet():
    h200 = CLUSTERS["h200"]
    for shape in ((8192, 8192, 8192), (1024, 4096, 4096)):
        assert simulated_seconds(shape, h200) * h200.peak_flops >= 2 * math.prod(shape)
