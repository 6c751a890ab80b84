"""The interface of cost models, which gives seconds of layers, collectives and hops; plans are costed through it."""

import dataclasses
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from configs.clusters import Link
from configs.cost_effects import CostEffects
from sharding.axes import ContextTransfer
from sharding.costs.node_placement import NodePlacement
from sharding.costs.optimizer_memory import OptimizerMemory
from sharding.expert_transfer import ExpertTransferChoice
from sharding.plans.parallelism import TENSOR_COLLECTIVES, CollectivesName
from sharding.plans.resolved.trained_parts import Gradient
from sharding.specs.layers.layer import Kernel, LayerSpec, Loads, RecomputePolicy

Times = Float[np.ndarray, "*shape"] | float
"""Seconds or other figures, one for each load; a number for a single load."""


class LayerSeconds(NamedTuple):
    """Seconds of a layer's forward or backward.

    Attributes:
        compute: Seconds of kernels.
        communication: Seconds in which the device waits for other tensor, context-parallel or expert ranks, or for
            transfers to and from its host's memory.
    """

    compute: Times
    communication: Times

    @property
    def total(self) -> Times:
        """Seconds of kernels and of waiting together."""
        return self.compute + self.communication


@dataclasses.dataclass(frozen=True)
class LayerParallelism:
    """The ranks that compute a layer.

    Attributes:
        tp: Tensor ranks of a replica.
        cp: Context-parallel ranks of a replica.
        context_transfer: How their attention reaches each other's positions (`Parallelism.context_transfer`).
        ep: Replicas that divide the experts.
        expert_transfer: How tokens get to them (`Parallelism.expert_transfer`).
        dp: Replicas that compute at once.
        fsdp: Replicas that divide all weights.
        collectives: The collectives of the tensor ranks around split matmuls (`Parallelism.collectives`).
    """

    tp: int = 1
    cp: int = 1
    _: dataclasses.KW_ONLY
    context_transfer: ContextTransfer = "ring"
    ep: int = 1
    expert_transfer: ExpertTransferChoice = "auto"
    dp: int = 1
    fsdp: int = 1
    collectives: CollectivesName = "sequence_parallel"

    @property
    def sequence_shards(self) -> int:
        """How many ranks divide the positions between split matmuls (sequence parallelism, arXiv 2205.05198)."""
        return self.tp if TENSOR_COLLECTIVES[self.collectives].sequence_parallel else 1

    @property
    def context_steps(self) -> int:
        """Steps of attention over context-parallel ranks: as many as a ring has, or one."""
        return self.cp if self.context_transfer == "ring" else 1

    @property
    def overlaps_collectives(self) -> bool:
        """Whether gathers and scatters overlap with the matmuls."""
        return TENSOR_COLLECTIVES[self.collectives].implementation != "reference"

    @property
    def lockstep_ranks(self) -> int:
        """How many ranks compute a layer together, each of which waits for the slowest of them."""
        return self.tp * self.cp * max(self.ep, self.fsdp)

    def for_layer(self, layer: LayerSpec) -> "LayerParallelism":
        """The same ranks for one layer, which may need all positions whatever the plan says."""
        return self if layer.sequence_parallel else dataclasses.replace(self, collectives="all_reduce")

    def group_size(self, kernel: Kernel) -> int:
        """Number of ranks of a collective."""
        return self.tp if kernel.rank_group == "tensor" else self.ep


@runtime_checkable
class CostModel(Protocol):
    """Seconds of layers, collectives, hops and the optimizer, from which the costs of plans are computed."""

    @property
    def element_bytes(self) -> int:
        """Bytes of an element in compute precision."""
        ...

    @property
    def optimizer(self) -> OptimizerMemory:
        """Bytes of the optimizer's state, and where it lies."""
        ...

    @property
    def collectives(self) -> CollectivesName:
        """The collectives of a planner's tensor ranks around split matmuls (`Parallelism.collectives`)."""
        ...

    @property
    def peak_flops(self) -> float:
        """FLOP/s of one device; 0 where it is not known."""
        ...

    @property
    def fp8_rate(self) -> float:
        """The peak of FP8 matmuls in units of `peak_flops`."""
        ...

    @property
    def devices_per_node(self) -> int:
        """Devices of a node; device numbers run through one node before the next."""
        ...

    @property
    def effects(self) -> CostEffects:
        """Effects of collectives beside computation and of dispatch; none for measured costs, which leave them out."""
        ...

    @property
    def depends_on_stack(self) -> bool:
        """Whether a layer's seconds depend on how many equal ones it is stacked with."""
        ...

    @property
    def has_row_gathers(self) -> bool:
        """Whether `gather_rows` has seconds; without, planners leave out stages with unlike tensor-parallel sizes."""
        ...

    @property
    def has_all_policies(self) -> bool:
        """Whether layers have seconds with every recomputation policy, and not with the measured ones alone."""
        ...

    def forward(self, layer: LayerSpec, loads: Loads, ranks: LayerParallelism, stack: int = 1) -> LayerSeconds:
        """The forward of one of `stack` equal layers, for each load of a replica, on one of its devices."""
        ...

    def backward(
        self,
        layer: LayerSpec,
        loads: Loads,
        ranks: LayerParallelism,
        gradients: tuple[Gradient, ...],
        recompute: RecomputePolicy,
        stack: int = 1,
    ) -> LayerSeconds:
        """The backward: the gradients asked for, and what the policy recomputes for them."""
        ...

    def gather_weights(self, parameters: float, ranks: NodePlacement) -> float:
        """The all-gather that makes compute weights from master weights.

        Args:
            parameters: Elements on one device.
            ranks: The data and context-parallel ranks that divide the master weights.
        """
        ...

    def reduce_gradients(self, parameters: float, ranks: NodePlacement) -> float:
        """Seconds of the reduce-scatter of float32 gradients; takes the arguments of `gather_weights`."""
        ...

    def gather_rows(self, size: Times, ranks: int, devices: int) -> Times:
        """The all-gather of activations or gradients between modules of a stage with unlike tensor-parallel sizes.

        Raises UserError without `has_row_gathers`.

        Args:
            size: Bytes of what is gathered.
            ranks: Devices that each have a shard of it.
            devices: Consecutive devices among which they are.
        """
        ...

    def gradient_norm(self, stages: int) -> float:
        """Seconds that all devices wait, between reductions and updates, for the norm of all gradients."""
        ...

    def optimizer_update(self, parameters: float, dp: int) -> float:
        """The optimizer's update of `parameters` elements on one device, while `dp` replicas update at once."""
        ...

    def host_transfer(self, size: Times) -> Times:
        """Sending `size` bytes from a device to its host's memory, or back, as far as measured seconds lack it."""
        ...

    def hop(self, size: Times, inside: bool, devices: int) -> Times:
        """Sending `size` bytes from one device to another.

        Args:
            size: Bytes.
            inside: Whether both ends are on one node.
            devices: Number of devices of both stages, all replicas and ranks.
        """
        ...


def beside_transfer(seconds: LayerSeconds, size: Times, costs: CostModel) -> LayerSeconds:
    """Seconds of a layer's forward or backward beside which `size` bytes go to the host's memory, or come back.

    The transfers of a layer take place while its neighbour computes; what takes longer than computing is waited for.
    """
    exposed = np.maximum(costs.host_transfer(size) - seconds.compute, 0.0)
    return LayerSeconds(seconds.compute, seconds.communication + exposed)


def useful_flops(layer: LayerSpec, loads: Loads, gradients: tuple[Gradient, ...]) -> Times:
    """FLOPs of the forward and of the required gradients, over all devices of a replica; recomputation is not counted.

    Each gradient of a matmul takes as many FLOPs as its forward. Attention has no parameters; the gradients of its
    inputs take twice its forward.
    """
    passes = np.array([_passes(kernel, gradients) for kernel in layer.kernels], float)
    return np.asarray(loads @ (passes @ layer.kernel_arrays.flops))


def masked_flops(layer: LayerSpec, load: Float[np.ndarray, " 4"], gradients: tuple[Gradient, ...]) -> float:
    """FLOPs of causal attention's masked half squares, which `useful_flops` leaves out, for one load."""
    return float(sum(kernel.masked_flops.evaluate(load) * _passes(kernel, gradients) for kernel in layer.kernels))


def _passes(kernel: Kernel, gradients: tuple[Gradient, ...]) -> int:
    """How many times the FLOPs of its forward a kernel takes with its gradients."""
    return 1 + (2 * ("dgrad" in gradients) if kernel.kind == "attention" else len(gradients))


def ring_seconds(size: Times, ranks: int, link: Link) -> Times:
    """Seconds of a ring all-gather or reduce-scatter (Thakur et al. 2005).

        (ranks - 1) * (latency + size / ranks / bandwidth)

    Args:
        size: Bytes of the whole array.
        ranks: Number of ranks.
        link: The slowest link between neighbours.
    """
    if ranks == 1:
        return np.zeros_like(size)
    return np.asarray((ranks - 1) * (link.latency + size / ranks / link.bandwidth))


def collective_seconds(size: Times, placement: NodePlacement, intra_node: Link, inter_node: Link) -> Times:
    """Seconds of an all-gather or a reduce-scatter: the shorter of one ring, and of rings between and inside nodes.

        min(ring(size, ranks, inter_node), ring(size / fewest, nodes, inter_node) + ring(size, most, intra_node))

    In the latter every rank of a node exchanges its share of the array with other nodes over a network card of its own,
    then the ranks of a node exchange what each of them has. The node with the fewest ranks has the fewest cards. Both
    exchanges are assumed to follow each other, and ranks with other parameters to have links of their own.

    Args:
        size: Bytes of the whole array.
        placement: The ranks.
        intra_node: Link between devices of one node.
        inter_node: Link between nodes, of one device.
    """
    inside = ring_seconds(size, placement.most, intra_node)
    if placement.nodes == 1:
        return inside
    between = ring_seconds(size / placement.fewest, placement.nodes, inter_node)
    return np.minimum(ring_seconds(size, placement.ranks, inter_node), between + inside)
