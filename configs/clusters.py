"""Accelerators and their interconnects, from the vendors' data sheets: the input of analytic costs and planners."""

import dataclasses
import math
from collections.abc import Iterable

from configs.common.errors import UserError
from configs.common.short_repr import short_repr
from configs.cost_effects import EffectName
from configs.device_generations import AMPERE, BLACKWELL, EMULATED, H20, HOPPER, DeviceGeneration

ALLOCATOR_SHARE = 0.92
"""Share of a GPU's memory that processes of mmjax give to XLA's allocator (`XLA_CLIENT_MEM_FRACTION`)."""

FRAGMENTATION = 0.03
"""Share of the allocator's memory that is taken to be lost to fragmentation; assumed."""


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
        if not (0 < self.bandwidth < math.inf and 0 <= self.latency < math.inf):
            raise ValueError(f"Link: bandwidth {self.bandwidth} must be positive, latency {self.latency} not negative")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """Equal devices in equal nodes.

    Attributes:
        name: Name of the cluster.
        peak_flops: Dense bfloat16 FLOP/s of a device, without sparsity.
        memory: Bytes of a device.
        allocator_share: Share of the memory that XLA's allocator takes (`XLA_CLIENT_MEM_FRACTION`). The rest is
            for the CUDA context, NCCL's buffers and libraries.
        fragmentation: Share of the allocator's memory that no array can use, because it lies in pieces.
        memory_bandwidth: Bytes per second between a device and its memory.
        devices_per_node: Number of devices of a node.
        intra_node: The link between devices of one node.
        inter_node: The link between nodes: one device's share of the node's network cards.
        generation: Properties of the devices that decide the share of the peak that kernels reach.
        host_link: The link between a device and its host's memory; None where nothing is offloaded.
        host_memory: Bytes of the host's memory, one device's share.
        device_kinds: Prefixes of `jax.Device.device_kind` on these devices; none if no devices are known by it.
        excluded_kinds: Substrings that the kind does not contain: names of other variants that have the same prefix.
    """

    name: str
    peak_flops: float
    memory: float
    memory_bandwidth: float
    devices_per_node: int
    intra_node: Link
    inter_node: Link
    generation: DeviceGeneration
    host_link: Link | None = None
    host_memory: float = 0
    device_kinds: tuple[str, ...] = ()
    excluded_kinds: tuple[str, ...] = ()
    allocator_share: float = ALLOCATOR_SHARE
    fragmentation: float = FRAGMENTATION

    __repr__ = short_repr

    def __post_init__(self) -> None:
        for name in ("peak_flops", "memory", "memory_bandwidth", "devices_per_node"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"ClusterConfig.{name} is {getattr(self, name)}; it must be positive")
        if not (0 < self.allocator_share <= 1 and 0 <= self.fragmentation < 1):
            raise ValueError(
                f"ClusterConfig: allocator_share {self.allocator_share} must be above 0 and at most 1, fragmentation "
                f"{self.fragmentation} not negative and below 1"
            )
        if self.host_link and not 0 < self.host_memory < math.inf:
            raise ValueError(f"ClusterConfig.host_memory is {self.host_memory}; with a host_link it must be positive")

    @property
    def usable_memory(self) -> float:
        """Bytes of a device that arrays can take."""
        return self.memory * self.allocator_share * (1 - self.fragmentation)

    def without(self, effects: Iterable[EffectName]) -> "ClusterConfig":
        """Returns the same devices without some effects on costs. Raises UserError for an unknown name."""
        generation = dataclasses.replace(self.generation, effects=self.generation.effects.without(effects))
        return dataclasses.replace(self, generation=generation)

    def has_device_kind(self, device_kind: str) -> bool:
        """Whether devices of a kind (`jax.Device.device_kind`) are the cluster's."""
        return device_kind.startswith(self.device_kinds) and not any(
            form in device_kind for form in self.excluded_kinds
        )


# Sources: NVIDIA's data sheets; all figures are for one device, without sparsity. NVLink is printed there for both
# directions together, so each direction has half of it.
#
#   cluster     bf16 TFLOP/s   memory    bandwidth    NVLink     data sheet
#   a100        312            80 GB     2,039 GB/s   600 GB/s   A100 80GB SXM; a100_40gb: A100 40GB, 1,555 GB/s
#   a800        312            80 GB     2,039 GB/s   400 GB/s   A800 80GB SXM
#   h100        989            80 GB     3.35 TB/s    900 GB/s   H100 SXM5
#   h800        989            80 GB     3.35 TB/s    400 GB/s   H800 SXM5
#   h20         148            96 GB     4.0 TB/s     900 GB/s   H20
#   h200        989            141 GB    4.8 TB/s     900 GB/s   H200 SXM
#   b200        2,250          180 GB    8 TB/s       1.8 TB/s   DGX B200: 1,440 GB and 64 TB/s for 8 devices
#   gb200       2,500          186 GB    8 TB/s       1.8 TB/s   GB200 NVL72: 180 PFLOP/s, 13.4 TB, 576 TB/s for 72
#
# The host's memory is reached by PCIe x16, printed for both directions together: 64 GB/s (gen 4: A100, A800), 128 GB/s
# (gen 5: all others but GB200, whose superchips have 900 GB/s of NVLink-C2C for two devices). Eight devices share 2 TB
# in DGX A100 80GB, DGX H100 and DGX B200, 1 TB in DGX A100 40GB; 72 share 17 TB in GB200 NVL72. A copy starts in about
# 10 us.
#
# Network cards belong to nodes, not to devices: DGX A100 has a card of 200 Gbit/s for each device, DGX H100, DGX B200
# and GB200 NVL72 have one of 400 Gbit/s. The nodes of A800, H800 and H20 are not NVIDIA's; their networks are assumed
# to be the same. Latencies of a transfer with NCCL: about 3 us by NVLink, 10 us by RDMA. The CPU's figures are for two
# cores that emulate eight devices.
#
# Memory: a CUDA context takes 0.5 to 0.9 GiB and NCCL's communicators 1 to 2 GiB (stas00/ml-engineering,
# training/performance); JAX-Toolbox gives XLA's allocator 90% as a rule (docs/GPU_performance.md). What fragmentation
# takes of that is assumed.
_A100 = ClusterConfig(
    name="a100",
    peak_flops=312e12,
    memory=80e9,
    memory_bandwidth=2.039e12,
    devices_per_node=8,
    intra_node=Link(300e9, 3e-6),
    inter_node=Link(25e9, 10e-6),
    generation=AMPERE,
    host_link=Link(32e9, 10e-6),
    host_memory=250e9,
    device_kinds=("NVIDIA A100",),
    excluded_kinds=("40GB",),
)
_A100_40GB = dataclasses.replace(
    _A100,
    name="a100_40gb",
    memory=40e9,
    memory_bandwidth=1.555e12,
    host_memory=125e9,
    device_kinds=("NVIDIA A100-SXM4-40GB", "NVIDIA A100-PCIE-40GB"),
    excluded_kinds=(),
)
_A800 = dataclasses.replace(
    _A100, name="a800", intra_node=Link(200e9, 3e-6), device_kinds=("NVIDIA A800",), excluded_kinds=()
)
_H100 = ClusterConfig(
    name="h100",
    peak_flops=989e12,
    memory=80e9,
    memory_bandwidth=3.35e12,
    devices_per_node=8,
    intra_node=Link(450e9, 3e-6),
    inter_node=Link(50e9, 10e-6),
    generation=HOPPER,
    host_link=Link(64e9, 10e-6),
    host_memory=250e9,
    device_kinds=("NVIDIA H100 80GB HBM3",),
    excluded_kinds=("PCIe", "NVL"),
)
_H800 = dataclasses.replace(_H100, name="h800", intra_node=Link(200e9, 3e-6), device_kinds=("NVIDIA H800",))
_H200 = dataclasses.replace(_H100, name="h200", memory=141e9, memory_bandwidth=4.8e12, device_kinds=("NVIDIA H200",))
_H20 = dataclasses.replace(
    _H100,
    name="h20",
    generation=H20,
    peak_flops=148e12,
    memory=96e9,
    memory_bandwidth=4.0e12,
    device_kinds=("NVIDIA H20",),
    excluded_kinds=("NVIDIA H200", "H20-3e", "PCIe", "NVL"),
)
_B200 = ClusterConfig(
    name="b200",
    peak_flops=2250e12,
    memory=180e9,
    memory_bandwidth=8e12,
    devices_per_node=8,
    intra_node=Link(900e9, 3e-6),
    inter_node=Link(50e9, 10e-6),
    generation=BLACKWELL,
    host_link=Link(64e9, 10e-6),
    host_memory=250e9,
    device_kinds=("NVIDIA B200",),
)
_GB200 = dataclasses.replace(
    _B200,
    name="gb200",
    peak_flops=2500e12,
    memory=186e9,
    devices_per_node=72,
    host_link=Link(225e9, 10e-6),
    host_memory=236e9,
    device_kinds=("NVIDIA GB200",),
)
_CPU = ClusterConfig(
    name="cpu",
    peak_flops=50e9,
    memory=2e9,
    memory_bandwidth=10e9,
    devices_per_node=8,
    intra_node=Link(5e9, 50e-6),
    inter_node=Link(1e9, 100e-6),
    generation=EMULATED,
    host_link=Link(5e9, 50e-6),
    host_memory=2e9,
    device_kinds=("cpu",),
    allocator_share=1.0,
    fragmentation=0.0,
)
_CLUSTERS = (_A800, _A100, _A100_40GB, _H100, _H800, _H20, _H200, _B200, _GB200, _CPU)

CLUSTERS = {cluster.name: cluster for cluster in _CLUSTERS}
"""Known clusters by name. Others are described in gin files, such as the files in configs/hardware."""


def find_cluster(name: str) -> ClusterConfig:
    """The cluster of a name; raises UserError if there is none."""
    if name not in CLUSTERS:
        raise UserError(f"there is no cluster {name!r}; choose from {', '.join(CLUSTERS)}")
    return CLUSTERS[name]


def cluster_of_device_kind(device_kind: str) -> ClusterConfig | None:
    """The cluster of devices of a kind (`jax.Device.device_kind`); None if the kind is unknown."""
    return next((cluster for cluster in CLUSTERS.values() if cluster.has_device_kind(device_kind)), None)
