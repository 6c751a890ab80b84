"""An analytic cost model: seconds of kernels by their shapes, and of transfers by a cluster's data sheet."""

import dataclasses
import functools
import math

import numpy as np
from jaxtyping import Bool, Float

from configs.clusters import ClusterConfig, Link
from configs.cost_effects import CostEffects
from sharding.costs.concurrency import expected_largest, exposed_seconds
from sharding.costs.cost_model import LayerParallelism, LayerSeconds, Times, collective_seconds, ring_seconds
from sharding.costs.expert_seconds import expert_nodes, expert_transfer_seconds
from sharding.costs.kernel_seconds import KernelCosts, matmuls_beside
from sharding.costs.memory import GRADIENT_BYTES
from sharding.costs.node_placement import NodePlacement
from sharding.costs.optimizer_memory import OptimizerMemory
from sharding.expert_transfer import chosen_transfer
from sharding.plans.parallelism import CollectivesName
from sharding.plans.plan_error import PlanError
from sharding.plans.resolved.trained_parts import Gradient
from sharding.specs.layers.layer import COLLECTIVE_KINDS, ZERO, Kernel, LayerSpec, Loads, RecomputePolicy
from sharding.specs.layers.recomputed_kernels import runs_again


@dataclasses.dataclass(frozen=True, kw_only=True)
class Efficiency:
    """The share of the data sheet's bandwidths that large kernels and transfers reach.

    What matmuls and attention reach follows from their shapes (`matmul_seconds.py`, `attention_seconds.py`).

    Attributes:
        memory: Share of the memory bandwidth.
        link: Share of the links' bandwidth.
        launch: Seconds from one kernel launch to the next.
    """

    memory: float = 0.80
    link: float = 0.80
    launch: float = 3e-6

    def __post_init__(self) -> None:
        for name in ("memory", "link"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"Efficiency.{name} is {getattr(self, name)}; it must be above 0 and at most 1")


_BACKWARD_RINGS = 2.0  # keys and values go around the ring once more, and their gradients with them


@dataclasses.dataclass(frozen=True)
class AnalyticCostModel:
    """Each kernel takes the longer of its arithmetic, by its shape, and its memory traffic, and a launch.

    Context-parallel ranks divide every segment evenly, as the zigzag order of its chunks makes them do. While attention
    computes with one rank's keys and values, the keys and values of the next rank are sent; the device waits for the
    time by which sending takes longer than computing. Routers are assumed to send every expert rank equally many
    tokens.

    Attributes:
        cluster: The devices.
        efficiency: The share of their data sheet that they reach.
        element_bytes: Bytes of an element in compute precision.
        collectives: The collectives of a planner's tensor ranks around split matmuls (`Parallelism.collectives`).
        optimizer: Bytes of the optimizer's state, and where it lies.
    """

    cluster: ClusterConfig
    efficiency: Efficiency = Efficiency()
    element_bytes: int = 2
    collectives: CollectivesName = "ring"
    optimizer: OptimizerMemory = OptimizerMemory()

    @property
    def peak_flops(self) -> float:
        """Peak FLOP/s of one device."""
        return self.cluster.peak_flops

    @property
    def fp8_rate(self) -> float:
        """See `CostModel.fp8_rate`."""
        return self.cluster.generation.fp8_rate

    @property
    def devices_per_node(self) -> int:
        """Devices of a node; device numbers run through one node before the next."""
        return self.cluster.devices_per_node

    @property
    def effects(self) -> CostEffects:
        """See `CostModel.effects`."""
        return self.cluster.generation.effects

    @property
    def depends_on_stack(self) -> bool:
        """See `CostModel.depends_on_stack`."""
        return False

    @property
    def has_row_gathers(self) -> bool:
        """See `CostModel.has_row_gathers`."""
        return True

    @property
    def has_all_policies(self) -> bool:
        """See `CostModel.has_all_policies`."""
        return True

    @functools.cached_property
    def _kernels(self) -> KernelCosts:
        bandwidth = self.cluster.memory_bandwidth * self.efficiency.memory
        return KernelCosts(self.cluster, bandwidth, self.efficiency.launch, self.element_bytes)

    def forward(self, layer: LayerSpec, loads: Loads, ranks: LayerParallelism, stack: int = 1) -> LayerSeconds:
        """See `CostModel.forward`."""
        loads, ranks = loads / ranks.cp, ranks.for_layer(layer)
        seconds = self._kernels.passes(layer, loads, ranks)
        waiting = self._waiting(layer, loads, ranks, seconds.forward)
        return self._with_jitter(LayerSeconds(seconds.forward.sum(axis=-1), waiting), ranks)

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
        loads, ranks = loads / ranks.cp, ranks.for_layer(layer)
        compute = waiting = np.zeros(loads.shape[:-1])
        if not gradients:
            return LayerSeconds(compute, waiting)
        seconds = self._kernels.passes(layer, loads, ranks)
        again = np.array([runs_again(kernel, recompute) for kernel in layer.kernels], bool)
        if again.any():
            compute = compute + seconds.forward[..., again].sum(axis=-1)
            waiting = waiting + self._waiting(layer, loads, ranks, seconds.forward, again)
        if "dgrad" in gradients:
            compute = compute + seconds.dgrad.sum(axis=-1)
            waiting = waiting + self._waiting(layer, loads, ranks, seconds.dgrad, rings=_BACKWARD_RINGS)
        if "wgrad" in gradients:
            compute = compute + seconds.wgrad.sum(axis=-1) + self._kernels.accumulation(layer, loads, ranks)
        return self._with_jitter(LayerSeconds(compute, waiting), ranks)

    def _with_jitter(self, seconds: LayerSeconds, ranks: LayerParallelism) -> LayerSeconds:
        """Seconds that vary on every rank: the mean excess, and waiting for the rank with the largest."""
        mean = self.effects.jitter * expected_largest(1)
        largest = self.effects.jitter * expected_largest(ranks.lockstep_ranks)
        compute, communication = seconds
        return LayerSeconds(compute * (1 + mean), communication + compute * (largest - mean))

    def _waiting(
        self,
        layer: LayerSpec,
        loads: Loads,
        ranks: LayerParallelism,
        seconds: Float[np.ndarray, "*shape k"],
        runs: Bool[np.ndarray, " k"] | None = None,
        rings: float = 1.0,
    ) -> Times:
        """Seconds in which a device waits for other ranks during one pass over the layer.

        Args:
            layer: The layer.
            loads: Loads of a context-parallel rank.
            ranks: The ranks that compute the layer.
            seconds: Seconds of each kernel in this pass.
            runs: Which kernels run; all by default.
            rings: How many times keys and values go around the context-parallel ranks.
        """
        waiting = np.zeros(loads.shape[:-1])
        for number, kernel in enumerate(layer.kernels):
            if runs is not None and not runs[number]:
                continue
            if kernel.kind in COLLECTIVE_KINDS:
                if ranks.group_size(kernel) > 1:
                    beside = self._overlapped(layer, number, seconds, ranks)
                    waiting = waiting + exposed_seconds(
                        beside, self._collective(layer, number, loads, ranks), self.effects
                    )
            elif ranks.cp > 1 and kernel.ring_elements != ZERO and ranks.context_transfer == "all_to_all":
                waiting = waiting + self._head_exchange(kernel, loads, ranks)
            elif ranks.cp > 1 and kernel.ring_elements != ZERO:
                ring = rings * self._ring_attention(kernel, loads, ranks)
                waiting = waiting + exposed_seconds(seconds[..., number], ring, self.effects)
        return np.where((loads != 0).any(axis=-1), waiting, 0.0)  # nothing runs for an empty microbatch

    def _collective(self, layer: LayerSpec, number: int, loads: Loads, ranks: LayerParallelism) -> Times:
        kernel = layer.kernels[number]
        size = self.element_bytes * kernel.activations.evaluate(loads)
        if kernel.rank_group == "tensor":
            return ring_seconds(size, ranks.tp, self._link_over(ranks.tp))
        assert layer.routing is not None, f"the layer {layer.name} sends tokens to experts, but has no routing"
        nodes = expert_nodes(ranks, self.devices_per_node)
        transfer = chosen_transfer(ranks.expert_transfer, layer.routing, ranks.ep, nodes)
        fullest = self.effects.imbalance if transfer == "all_to_all" else 1.0
        return fullest * expert_transfer_seconds(
            size, layer.routing, transfer, ranks.ep, nodes, self._link(True), self._link(False)
        )

    def _ring_attention(self, kernel: Kernel, loads: Loads, ranks: LayerParallelism) -> Times:
        """Seconds in which keys and values are sent once around the context-parallel ranks."""
        size = self.element_bytes * kernel.ring_elements.evaluate(loads) / (ranks.tp if kernel.split else 1)
        return ring_seconds(size * ranks.cp, ranks.cp, self._link_over(ranks.tp * ranks.cp))

    def _head_exchange(self, kernel: Kernel, loads: Loads, ranks: LayerParallelism) -> Times:
        """Seconds of the all-to-alls that give each rank some heads of all positions, and that return the output.

        As much is sent in the backward: the gradients of the output and of queries, keys and values.
        """
        size = self.element_bytes * kernel.activations.evaluate(loads) / (ranks.tp if kernel.split else 1)
        return ring_seconds(size, ranks.cp, self._link_over(ranks.tp * ranks.cp))

    def _overlapped(
        self, layer: LayerSpec, number: int, kernel_seconds: Float[np.ndarray, "*shape k"], ranks: LayerParallelism
    ) -> Times:
        """Seconds of matmuls that a collective overlaps with: in all steps of a ring but one.

        In the backward there are as many matmuls for each of the two gradients, and as much to send during each.
        """
        kernel = layer.kernels[number]
        if kernel.rank_group != "tensor" or not ranks.overlaps_collectives:
            return 0.0
        seconds = kernel_seconds[..., matmuls_beside(layer, number)].sum(axis=-1)
        return seconds * (ranks.tp - 1) / ranks.tp

    def gather_weights(self, parameters: float, ranks: NodePlacement) -> float:
        """See `CostModel.gather_weights`."""
        return self._collective_of_parameters(self.element_bytes * parameters, ranks)

    def reduce_gradients(self, parameters: float, ranks: NodePlacement) -> float:
        """See `CostModel.reduce_gradients`."""
        return self._collective_of_parameters(4 * parameters, ranks)

    def _collective_of_parameters(self, size: float, ranks: NodePlacement) -> float:
        between = self._link(False)
        contention = 1 + self.effects.contention * math.log2(ranks.nodes)
        shared = Link(between.bandwidth / contention, between.latency)
        return float(collective_seconds(size, ranks, self._link(True), shared))

    def gather_rows(self, size: Times, ranks: int, devices: int) -> Times:
        """See `CostModel.gather_rows`."""
        return ring_seconds(size, ranks, self._link_over(devices))

    def gradient_norm(self, stages: int) -> float:
        """See `CostModel.gradient_norm`; a few numbers are exchanged, and the update counts the reads."""
        return 0.0

    def optimizer_update(self, parameters: float, dp: int) -> float:
        """See `CostModel.optimizer_update`.

        The master weight and the moments are read and written, and the gradient is read: 28 bytes with AdamW in
        float32. The norm reads the gradient once more, and the weight is written in compute precision.
        """
        traffic = 2 * self.optimizer.state_bytes(1, 1) + 2 * GRADIENT_BYTES + self.element_bytes
        return traffic * parameters / (self.cluster.memory_bandwidth * self.efficiency.memory)

    def host_transfer(self, size: Times) -> Times:
        """See `CostModel.host_transfer`."""
        link = self.cluster.host_link
        if link is None:
            raise PlanError(
                f"recompute offload and OptimizerConfig.state_memory host use the host's memory, but the cluster "
                f"{self.cluster.name} has no host_link; describe one, or keep all on the devices"
            )
        seconds = link.latency + np.asarray(size) / (link.bandwidth * self.efficiency.link)
        return np.asarray(np.where(np.asarray(size) > 0, seconds, 0.0))

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
