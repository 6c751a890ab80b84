"""Accelerators and their interconnects, from the vendors' data sheets."""

import dataclasses

from configs.device_generations import AMPERE, EMULATED, HOPPER, DeviceGeneration
from configs.errors import UserError


@dataclasses.dataclass(frozen=True)
class Link:
    """A connection, of which every device has one of its own.

    Attributes:
        bandwidth: Bytes per second in one direction.
        latency: Seconds before the first byte arrives.
    """

    bandwidth: float
    latency: float

    def __post_init__(self) -> None:
        if self.bandwidth <= 0 or self.latency < 0:
            raise ValueError(f"Link: bandwidth {self.bandwidth} must be positive, latency {self.latency} not negative")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """Equal devices in equal nodes.

    Attributes:
        name: Name of the cluster.
        device_kinds: Prefixes of `jax.Device.device_kind` on these devices.
        excluded_kinds: Substrings that it does not contain: those of slower variants with a similar name.
        peak_flops: Dense bfloat16 FLOP/s of a device, without sparsity.
        memory: Bytes of a device.
        memory_bandwidth: Bytes per second between a device and its memory.
        devices_per_node: Number of devices of a node.
        intra_node: The link between devices of one node.
        inter_node: The link between nodes: one device's share of the node's network cards.
        generation: What decides how near kernels come to the peak.
    """

    name: str
    device_kinds: tuple[str, ...]
    peak_flops: float
    memory: float
    memory_bandwidth: float
    devices_per_node: int
    intra_node: Link
    inter_node: Link
    generation: DeviceGeneration
    excluded_kinds: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("peak_flops", "memory", "memory_bandwidth", "devices_per_node"):
            if getattr(self, name) <= 0:
                raise ValueError(f"ClusterConfig.{name} is {getattr(self, name)}; it must be positive")


# Peaks, memory and bandwidths: NVIDIA's data sheets of A100 80GB SXM, H100 SXM5 and H200 SXM. The A800 is an A100 with
# less NVLink: DistTrain's nodes (section 8) have 300 GB/s in both directions together, 4 x 200 Gbit/s for 8 devices.
# OrchMLLM's H100 nodes have 900 GB/s in both directions together and 8 x 400 Gbit/s. Latencies of a transfer with NCCL:
# about 3 us by NVLink, 10 us by RDMA. The CPU's figures are those of two cores that emulate eight devices.
_A100 = {
    "peak_flops": 312e12,
    "memory": 80e9,
    "memory_bandwidth": 2.039e12,
    "devices_per_node": 8,
    "generation": AMPERE,
}
_HOPPER = {
    "peak_flops": 989e12,
    "generation": HOPPER,
    "devices_per_node": 8,
    "intra_node": Link(450e9, 3e-6),
    "inter_node": Link(50e9, 10e-6),
    "excluded_kinds": ("PCIe", "NVL"),
}

CLUSTERS = {
    "a800": ClusterConfig(
        name="a800",
        device_kinds=("NVIDIA A800",),
        **_A100,
        intra_node=Link(150e9, 3e-6),
        inter_node=Link(12.5e9, 10e-6),
    ),
    "a100": ClusterConfig(
        name="a100", device_kinds=("NVIDIA A100",), **_A100, intra_node=Link(300e9, 3e-6), inter_node=Link(25e9, 10e-6)
    ),
    "h100": ClusterConfig(
        name="h100",
        device_kinds=("NVIDIA H100 80GB HBM3", "NVIDIA H800"),
        memory=80e9,
        memory_bandwidth=3.35e12,
        **_HOPPER,
    ),
    "h200": ClusterConfig(name="h200", device_kinds=("NVIDIA H200",), memory=141e9, memory_bandwidth=4.8e12, **_HOPPER),
    "cpu": ClusterConfig(
        name="cpu",
        device_kinds=("cpu",),
        peak_flops=50e9,
        memory=2e9,
        memory_bandwidth=10e9,
        devices_per_node=8,
        intra_node=Link(5e9, 50e-6),
        inter_node=Link(1e9, 100e-6),
        generation=EMULATED,
    ),
}


def find_cluster(name: str) -> ClusterConfig:
    """The cluster of a name; raises UserError if there is none."""
    if name not in CLUSTERS:
        raise UserError(f"there is no cluster {name!r}; choose from {', '.join(CLUSTERS)}")
    return CLUSTERS[name]


def cluster_of_device_kind(device_kind: str) -> ClusterConfig | None:
    """The cluster of devices of a kind (`jax.Device.device_kind`); None if the kind is unknown."""
    for cluster in CLUSTERS.values():
        if device_kind.startswith(cluster.device_kinds) and not any(
            form in device_kind for form in cluster.excluded_kinds
        ):
            return cluster
    return None
