"""An analytic cost model: a roofline over the arithmetic, memory traffic and links of a cluster's data sheet."""

import dataclasses
import itertools
from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from configs.clusters import ClusterConfig, Link
from sharding.costs.cost_model import LayerParallelism, LayerSeconds, Times, ring_seconds
from sharding.plans.trained_parts import Gradient
from sharding.plans.unit_plan import CollectivesName
from sharding.specs.layer import COLLECTIVE_KINDS, ZERO, Kernel, KernelKind, LayerSpec, Loads, RecomputePolicy
from sharding.specs.recomputed_kernels import RECOMPUTED_KERNELS


@dataclasses.dataclass(frozen=True, kw_only=True)
class Efficiency:
    """The share of the data sheet's figures that large kernels reach.

    Calibrated once, on published text-only training (docs/planning.md has the comparison), and not changed since.

    Attributes:
        matmul: Share of the peak FLOP/s.
        convolution: Share of the peak FLOP/s.
        attention: Share of the peak FLOP/s.
        memory: Share of the memory bandwidth.
        link: Share of the links' bandwidth.
        launch: Seconds from one kernel launch to the next.
    """

    matmul: float = 0.65
    convolution: float = 0.45
    attention: float = 0.50
    memory: float = 0.80
    link: float = 0.80
    launch: float = 3e-6

    def __post_init__(self) -> None:
        for name in ("matmul", "convolution", "attention", "memory", "link"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"Efficiency.{name} is {getattr(self, name)}; it must be above 0 and at most 1")


# Backward seconds of each kernel, in units of its forward. Attention recomputes its scores: five products for two
# (FlashAttention-2, arXiv 2307.08691). The backward of a norm or an activation function reads what its forward read,
# and the gradient. Megatron's second gather of a matmul's input, for wgrad, overlaps with other work.
_BACKWARD: dict[KernelKind, dict[Gradient, float]] = {
    "matmul": {"dgrad": 1.0, "wgrad": 1.0},
    "convolution": {"dgrad": 1.0, "wgrad": 1.0},
    "attention": {"dgrad": 2.5, "wgrad": 0.0},
    "memory": {"dgrad": 1.5, "wgrad": 0.0},
    "all_gather": {"dgrad": 1.0, "wgrad": 0.0},
    "reduce_scatter": {"dgrad": 1.0, "wgrad": 0.0},
}
_NO_ARITHMETIC = ("memory", *COLLECTIVE_KINDS)
_BACKWARD_RINGS = 2.0  # keys and values go around the ring once more, and their gradients with them


@dataclasses.dataclass(frozen=True)
class AnalyticCostModel:
    """A roofline: each kernel takes the longer of its arithmetic and its memory traffic, and a launch.

    Context-parallel ranks divide every segment evenly, as the zigzag order of its parts makes them do. While attention
    computes with one rank's keys and values, those of the next rank are sent; the device waits for the time by which
    sending takes longer than computing. Routers are assumed to send every expert rank equally many tokens.

    Attributes:
        cluster: The devices.
        efficiency: The share of their data sheet that they reach.
        element_bytes: Bytes of an element in compute precision.
        collectives: What a planner's tensor ranks do around split matmuls (`UnitPlan.collectives`).
    """

    cluster: ClusterConfig
    efficiency: Efficiency = Efficiency()
    element_bytes: int = 2
    collectives: CollectivesName = "ring"

    @property
    def peak_flops(self) -> float:
        """Peak FLOP/s of one device."""
        return self.cluster.peak_flops

    @property
    def devices_per_node(self) -> int:
        """Devices of a node; device numbers run through one node before the next."""
        return self.cluster.devices_per_node

    def forward(self, layer: LayerSpec, loads: Loads, ranks: LayerParallelism, stack: int = 1) -> LayerSeconds:
        """See `CostModel.forward`."""
        return self._sum_kernels(layer, loads, ranks, lambda kernel: (1.0, 0.0))

    def backward(
        self,
        layer: LayerSpec,
        loads: Loads,
        ranks: LayerParallelism,
        gradients: tuple[Gradient, ...],
        recompute: RecomputePolicy,
        stack: int = 1,
    ) -> LayerSeconds:
        """See `CostModel.backward`."""

        def passes(kernel: Kernel) -> tuple[float, float]:
            recomputed = float(bool(gradients) and kernel.kind in RECOMPUTED_KERNELS[recompute])
            return recomputed, sum((_BACKWARD[kernel.kind][gradient] for gradient in gradients), start=0.0)

        return self._sum_kernels(layer, loads, ranks, passes)

    def _sum_kernels(
        self, layer: LayerSpec, loads: Loads, ranks: LayerParallelism, passes: Callable[[Kernel], tuple[float, float]]
    ) -> LayerSeconds:
        """Seconds of all kernels of a layer.

        Args:
            layer: The layer.
            loads: Loads of a replica.
            ranks: Who computes the layer.
            passes: For a kernel, how many forwards and how many forwards' worth of backward it runs.
        """
        loads, ranks = loads / ranks.cp, ranks.for_layer(layer)
        kernel_seconds = self._kernel_seconds(layer, loads, ranks)
        times = {kind: passes(kernel) for kind, kernel in {kernel.kind: kernel for kernel in layer.kernels}.items()}
        compute = kernel_seconds @ np.array([sum(times[kernel.kind]) for kernel in layer.kernels])
        waiting = np.zeros(loads.shape[:-1])
        for number, kernel in enumerate(layer.kernels):
            forward, backward = times[kernel.kind]
            if kernel.kind in COLLECTIVE_KINDS:
                if forward + backward and ranks.group_size(kernel) > 1:
                    overlapped = self._overlapped(layer, number, kernel_seconds, ranks)
                    exposed = self._collective(kernel, loads, ranks) - overlapped
                    waiting = waiting + (forward + backward) * np.maximum(exposed, 0.0)
            elif ranks.cp > 1 and kernel.ring_elements != ZERO and forward + backward:
                ring, seconds = self._ring_attention(kernel, loads, ranks), kernel_seconds[..., number]
                waiting = waiting + forward * np.maximum(ring - seconds, 0.0)
                backward_rings = _BACKWARD_RINGS if backward else 0.0
                waiting = waiting + np.maximum(backward_rings * ring - backward * seconds, 0.0)
        return LayerSeconds(compute, waiting)

    def _kernel_seconds(self, layer: LayerSpec, loads: Loads, ranks: LayerParallelism) -> Float[np.ndarray, "*shape k"]:
        """Seconds of each kernel's forward on a device, for loads of a context-parallel rank; 0 for collectives."""
        arrays, kinds = layer.kernel_arrays, [kernel.kind for kernel in layer.kernels]
        cluster, efficiency = self.cluster, self.efficiency
        whole = np.array([1 / ranks.sequence_shards if kind == "memory" else 1.0 for kind in kinds])
        share = np.where(arrays.split, 1 / ranks.tp, whole)
        weights = arrays.weights * np.where(arrays.split, share, 1.0) / np.where(arrays.expert, ranks.ep, 1)
        moved = self.element_bytes * (loads @ arrays.activations.T * share + weights)
        # Memory-bound kernels do no arithmetic worth counting, and collectives are no kernels of a device.
        flops = np.array([0.0 if kind in _NO_ARITHMETIC else 1 / getattr(efficiency, kind) for kind in kinds])
        arithmetic = loads @ arrays.flops.T * (share * flops / cluster.peak_flops)
        launches = [ranks.cp if kernel.ring_elements != ZERO else 1 for kernel in layer.kernels]
        seconds = np.maximum(moved / (cluster.memory_bandwidth * efficiency.memory), arithmetic)
        seconds = seconds + np.array(launches) * efficiency.launch
        is_computed = (loads != 0).any(axis=-1)[..., None] & np.array([kind not in COLLECTIVE_KINDS for kind in kinds])
        return np.where(is_computed, seconds, 0.0)

    def _collective(self, kernel: Kernel, loads: Loads, ranks: LayerParallelism) -> Times:
        size = self.element_bytes * kernel.activations.at(loads)
        if kernel.rank_group == "tensor":
            return ring_seconds(size, ranks.tp, self._link_over(ranks.tp))
        share = 1 / (ranks.tp if kernel.split else ranks.sequence_shards)
        return ring_seconds(size * share * ranks.ep, ranks.ep, self._link_over(ranks.tp * ranks.cp * ranks.ep))

    def _ring_attention(self, kernel: Kernel, loads: Loads, ranks: LayerParallelism) -> Times:
        """Seconds in which keys and values are sent once around the context-parallel ranks."""
        size = self.element_bytes * kernel.ring_elements.at(loads) / (ranks.tp if kernel.split else 1)
        return ring_seconds(size * ranks.cp, ranks.cp, self._link_over(ranks.tp * ranks.cp))

    def _overlapped(
        self, layer: LayerSpec, number: int, kernel_seconds: Float[np.ndarray, "*shape k"], ranks: LayerParallelism
    ) -> Times:
        """Seconds of matmuls that a collective overlaps with: in all steps of a ring but one.

        In the backward there are as many matmuls for each of the two gradients, and as much to send during each.
        """
        kernel = layer.kernels[number]
        if kernel.rank_group != "tensor" or not ranks.overlaps_collectives:
            return 0.0
        count = len(layer.kernels)
        neighbours = range(number + 1, count) if kernel.kind == "all_gather" else range(number - 1, -1, -1)
        matmuls = itertools.takewhile(lambda other: layer.kernels[other].kind == "matmul", neighbours)
        seconds = kernel_seconds[..., list(matmuls)].sum(axis=-1)
        return seconds * (ranks.tp - 1) / ranks.tp

    def gather_weights(self, parameters: float, dp: int, inside: bool) -> float:
        """See `CostModel.gather_weights`."""
        return float(ring_seconds(np.asarray(self.element_bytes * parameters), dp, self._link(inside)))

    def reduce_gradients(self, parameters: float, dp: int, inside: bool) -> float:
        """See `CostModel.reduce_gradients`."""
        return float(ring_seconds(np.asarray(4 * parameters), dp, self._link(inside)))

    def gradient_norm(self, stages: int) -> float:
        """See `CostModel.gradient_norm`; reading the gradients once and exchanging a few numbers is neglected."""
        return 0.0

    def optimizer_update(self, parameters: float, dp: int) -> float:
        """See `CostModel.optimizer_update`.

        Adam reads and writes the master weight and two moments, and reads the gradient: 28 bytes in float32.
        """
        return 28 * parameters / (self.cluster.memory_bandwidth * self.efficiency.memory)

    def hop(self, size: Times, inside: bool, devices: int) -> Times:
        """See `CostModel.hop`."""
        link = self._link(inside)
        return np.asarray(np.where(np.asarray(size) > 0, link.latency + size / link.bandwidth, 0.0))

    def _link_over(self, devices: int) -> Link:
        """The link that joins this many devices with consecutive numbers."""
        return self._link(devices <= self.cluster.devices_per_node)

    def _link(self, inside: bool) -> Link:
        link = self.cluster.intra_node if inside else self.cluster.inter_node
        return Link(link.bandwidth * self.efficiency.link, link.latency)
