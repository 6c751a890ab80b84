"""A roofline over a cluster's data sheet: what kernels take by arithmetic, memory traffic and links."""

import dataclasses
import itertools
from collections.abc import Callable

import numpy as np

from configs.clusters import ClusterConfig, Link
from sharding.costs.cost_model import LayerParallelism, LayerSeconds, Times, ring_seconds
from sharding.specs.layer import COLLECTIVE_KINDS, ZERO, Kernel, LayerSpec, Loads


@dataclasses.dataclass(frozen=True)
class Efficiency:
    """Shares of the data sheet that large kernels reach.

    Calibrated once, on published text-only training (docs/planning.md has the comparison), and then left alone.

    Attributes:
        matmul, convolution, attention: Of the peak FLOP/s.
        memory: Of the memory bandwidth.
        link: Of the links' bandwidth.
        launch: Seconds from one kernel of a chain to the next.
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


# In forwards of the same kernel. Attention computes its scores again, five products for two (FlashAttention-2,
# arXiv 2307.08691); a norm's or activation's backward reads what its forward read, and the gradient. Megatron's second
# gather of a matmul's input, for the gradient of its parameters, runs beside other work.
_BACKWARD = {
    "matmul": {"dgrad": 1.0, "wgrad": 1.0},
    "convolution": {"dgrad": 1.0, "wgrad": 1.0},
    "attention": {"dgrad": 2.5, "wgrad": 0.0},
    "memory": {"dgrad": 1.5, "wgrad": 0.0},
    "all_gather": {"dgrad": 1.0, "wgrad": 0.0},
    "reduce_scatter": {"dgrad": 1.0, "wgrad": 0.0},
}
_BACKWARD_RINGS = 2.0  # keys and values go around once more, and their gradients with them
# What each choice computes again: nothing, what is not a matmul with weights, everything.
_AGAIN = {
    "none": (),
    "selective": ("attention", "memory"),
    "full": tuple(_BACKWARD),
}


@dataclasses.dataclass(frozen=True)
class AnalyticCostModel:
    """A roofline: each kernel takes the longer of its arithmetic and its memory traffic, and a launch.

    Sequence ranks share the work of every segment evenly, as a zigzag order of its pieces makes them. While attention
    computes with one rank's keys and values the next rank's travel; what the way takes longer is waited for. Routers
    are taken to send every expert rank as many tokens.

    Attributes:
        cluster: The devices.
        efficiency: What share of their data sheet they reach.
        element_bytes: Bytes of a number in compute precision.
        collectives: What a planner's tensor ranks do around split matmuls (`UnitPlan.collectives`).
    """

    cluster: ClusterConfig
    efficiency: Efficiency = Efficiency()
    element_bytes: int = 2
    collectives: str = "ring"

    @property
    def peak_flops(self) -> float:
        """Of one device."""
        return self.cluster.peak_flops

    @property
    def devices_per_node(self) -> int:
        """Devices of a node; device numbers go through a node before the next."""
        return self.cluster.devices_per_node

    def _kernel(self, kernel: Kernel, loads: Loads, ranks: LayerParallelism) -> Times:
        """Seconds of one kernel's forward on a device, of the loads of a sequence rank."""
        if kernel.kind in COLLECTIVE_KINDS:
            return self._collective(kernel, loads, ranks)
        share = 1 / (ranks.tp if kernel.split else ranks.sequence_shards if kernel.kind == "memory" else 1)
        cluster, efficiency = self.cluster, self.efficiency
        weights = kernel.weights * (share if kernel.split else 1.0) / (ranks.ep if kernel.rank_group == "expert" else 1)
        moved = self.element_bytes * (kernel.activations.at(loads) * share + weights)
        seconds = moved / (cluster.memory_bandwidth * efficiency.memory)
        if kernel.kind != "memory":
            arithmetic = kernel.flops.at(loads) * share / (cluster.peak_flops * getattr(efficiency, kernel.kind))
            seconds = np.maximum(seconds, arithmetic)
        busy = (loads[..., 0] != 0) | (loads[..., 1] != 0) | (loads[..., 2] != 0)
        launches = ranks.cp if kernel.ring_elements != ZERO else 1
        return np.asarray(np.where(busy, seconds + launches * efficiency.launch, 0.0))

    def _collective(self, kernel: Kernel, loads: Loads, ranks: LayerParallelism) -> Times:
        size = self.element_bytes * kernel.activations.at(loads)
        if kernel.rank_group == "tensor":
            return ring_seconds(size, ranks.tp, self._link_of(ranks.tp))
        share = 1 / (ranks.tp if kernel.split else ranks.sequence_shards)
        return ring_seconds(size * share * ranks.ep, ranks.ep, self._link_of(ranks.tp * ranks.cp * ranks.ep))

    def _around(self, kernel: Kernel, loads: Loads, ranks: LayerParallelism) -> Times:
        """Seconds of keys and values on their way around the sequence ranks."""
        size = self.element_bytes * kernel.ring_elements.at(loads) / (ranks.tp if kernel.split else 1)
        return ring_seconds(size * ranks.cp, ranks.cp, self._link_of(ranks.tp * ranks.cp))

    def forward(self, layer: LayerSpec, loads: Loads, ranks: LayerParallelism, stack: int = 1) -> LayerSeconds:
        """See `Costs.forward`."""
        return self._sum(layer, loads, ranks, lambda kernel: (1.0, 0.0))

    def backward(
        self,
        layer: LayerSpec,
        loads: Loads,
        ranks: LayerParallelism,
        turns: tuple[str, ...],
        recompute: str,
        stack: int = 1,
    ) -> LayerSeconds:
        """See `Costs.backward`."""

        def passes(kernel: Kernel) -> tuple[float, float]:
            again = float(bool(turns) and kernel.kind in _AGAIN[recompute])
            return again, sum((_BACKWARD[kernel.kind][turn] for turn in turns), start=0.0)

        return self._sum(layer, loads, ranks, passes)

    def _sum(
        self, layer: LayerSpec, loads: Loads, ranks: LayerParallelism, passes: Callable[[Kernel], tuple[float, float]]
    ) -> LayerSeconds:
        """All kernels, each so many times forward, and so many times the forward's seconds backward."""
        loads, ranks = loads / ranks.cp, ranks.for_layer(layer)
        compute, waiting = np.zeros(loads.shape[:-1]), np.zeros(loads.shape[:-1])
        for number, kernel in enumerate(layer.kernels):
            forward, backward = passes(kernel)
            if not forward + backward:
                continue
            if kernel.kind in COLLECTIVE_KINDS:
                if ranks.group_size(kernel) > 1:
                    exposed = self._kernel(kernel, loads, ranks) - self._beside(layer, number, loads, ranks)
                    waiting = waiting + (forward + backward) * np.maximum(exposed, 0.0)
                continue
            seconds = self._kernel(kernel, loads, ranks)
            compute = compute + (forward + backward) * seconds
            if ranks.cp > 1 and kernel.ring_elements != ZERO:
                around = self._around(kernel, loads, ranks)
                waiting = waiting + forward * np.maximum(around - seconds, 0.0)
                rings = _BACKWARD_RINGS if backward else 0.0
                waiting = waiting + np.maximum(rings * around - backward * seconds, 0.0)
        return LayerSeconds(compute, waiting)

    def _beside(self, layer: LayerSpec, number: int, loads: Loads, ranks: LayerParallelism) -> Times:
        """Seconds of matmuls that a collective travels beside: all steps of a ring but one have something to wait for.

        Going back there are as many matmuls for each of the two gradients, and as much to send beside each.
        """
        kernel = layer.kernels[number]
        if kernel.rank_group != "tensor" or not ranks.overlaps_collectives:
            return 0.0
        near = layer.kernels[number + 1 :] if kernel.kind == "all_gather" else layer.kernels[:number][::-1]
        matmuls = itertools.takewhile(lambda other: other.kind == "matmul", near)
        seconds = sum((self._kernel(other, loads, ranks) for other in matmuls), start=np.zeros(loads.shape[:-1]))
        return seconds * (ranks.tp - 1) / ranks.tp

    def gather_weights(self, parameters: float, dp: int, inside: bool) -> float:
        """See `Costs.gather`."""
        return float(ring_seconds(np.asarray(self.element_bytes * parameters), dp, self._link(inside)))

    def reduce_gradients(self, parameters: float, dp: int, inside: bool) -> float:
        """See `Costs.reduce`."""
        return float(ring_seconds(np.asarray(4 * parameters), dp, self._link(inside)))

    def hop(self, size: Times, inside: bool, devices: int) -> Times:
        """See `Costs.hop`."""
        link = self._link(inside)
        return np.asarray(np.where(np.asarray(size) > 0, link.latency + size / link.bandwidth, 0.0))

    def gradient_norm(self, stages: int) -> float:
        """See `Costs.norm`; a few numbers, and gradients that are read once."""
        return 0.0

    def optimizer_update(self, parameters: float, dp: int) -> float:
        """Adam reads and writes the master weight and two moments, and reads the gradient, all float32."""
        return 28 * parameters / (self.cluster.memory_bandwidth * self.efficiency.memory)

    def _link_of(self, devices: int) -> Link:
        """Between neighbouring devices, so many of them."""
        return self._link(devices <= self.cluster.devices_per_node)

    def _link(self, inside: bool) -> Link:
        link = self.cluster.intra_node if inside else self.cluster.inter_node
        return Link(link.bandwidth * self.efficiency.link, link.latency)
