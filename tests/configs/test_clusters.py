import pytest

from configs.clusters import CLUSTERS, cluster_of_device_kind, find_cluster
from configs.common.errors import UserError

DEVICE_KINDS = {
    "NVIDIA A800-SXM4-80GB": "a800",
    "NVIDIA A100-SXM4-80GB": "a100",
    "NVIDIA A100-SXM4-40GB": "a100_40gb",
    "NVIDIA A100-PCIE-40GB": "a100_40gb",
    "NVIDIA H100 80GB HBM3": "h100",
    "NVIDIA H100 PCIe": None,
    "NVIDIA H100 NVL": None,
    "NVIDIA H800": "h800",
    "NVIDIA H800 PCIe": None,
    "NVIDIA H20": "h20",
    "NVIDIA H20-3e": None,
    "NVIDIA H200": "h200",
    "NVIDIA H200 NVL": None,
    "NVIDIA GH200 480GB": None,
    "NVIDIA B200": "b200",
    "NVIDIA GB200": "gb200",
    "cpu": "cpu",
    "TPU v5": None,
}
NVLINK = {"a800": 400, "a100": 600, "a100_40gb": 600, "h100": 900, "h800": 400, "h20": 900, "h200": 900}
NVLINK |= {"b200": 1800, "gb200": 1800}
"""GB/s in both directions together, as data sheets have it."""


@pytest.mark.parametrize(("kind", "name"), DEVICE_KINDS.items())
def test_devices_are_of_one_cluster_whatever_the_order(kind, name, monkeypatch):
    assert cluster_of_device_kind(kind) is (name and CLUSTERS[name])
    monkeypatch.setattr("configs.clusters.CLUSTERS", dict(reversed(CLUSTERS.items())))
    assert cluster_of_device_kind(kind) is (name and CLUSTERS[name])


def test_every_cluster_has_devices_and_is_found_by_name():
    assert {name for name in DEVICE_KINDS.values() if name} == set(CLUSTERS)
    assert all(find_cluster(name) is cluster and cluster.name == name for name, cluster in CLUSTERS.items())
    with pytest.raises(UserError, match="no cluster 'a900'; choose from a800, a100"):
        find_cluster("a900")


@pytest.mark.parametrize("name", NVLINK)
def test_each_direction_has_half_of_the_data_sheets_nvlink(name):
    cluster = CLUSTERS[name]
    assert cluster.intra_node.bandwidth == NVLINK[name] / 2 * 1e9
    assert cluster.inter_node.bandwidth < cluster.intra_node.bandwidth < cluster.memory_bandwidth


def test_totals_of_whole_systems_are_those_of_their_data_sheets():
    rack, box = CLUSTERS["gb200"], CLUSTERS["b200"]
    assert rack.devices_per_node * rack.peak_flops == 180e15 and box.devices_per_node * box.memory == 1440e9
    assert rack.devices_per_node * rack.memory == pytest.approx(13.4e12, rel=0.01)
    assert rack.devices_per_node * rack.memory_bandwidth == 576e12
