"""What layers, collectives and hops take: the interface of cost models."""

import dataclasses
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from configs.clusters import Link
from sharding.plans.unit_plan import TENSOR_COLLECTIVES
from sharding.specs.layer import Kernel, LayerSpec, Loads

Times = Float[np.ndarray, "*shape"] | float
"""An entry for each load; of a single load a number."""


class LayerSeconds(NamedTuple):
    """Time of some work.

    Attributes:
        compute: Seconds of kernels.
        tensor: Seconds in which the device waits for other tensor, sequence or expert ranks.
    """

    compute: Times
    communication: Times

    @property
    def total(self) -> Times:
        """Both."""
        return self.compute + self.communication


@dataclasses.dataclass(frozen=True)
class LayerParallelism:
    """Who computes a layer.

    Attributes:
        tp, cp: Tensor and sequence ranks of an instance.
        ep: Instances that divide the experts.
        dp: Instances that compute at once.
        collectives: What the tensor ranks do around split matmuls (`UnitPlan.collectives`).
    """

    tp: int = 1
    cp: int = 1
    ep: int = 1
    dp: int = 1
    collectives: str = "gather"

    @property
    def sequence_shards(self) -> int:
        """How many divide what lies between split matmuls (arXiv 2205.05198)."""
        divided, _ = TENSOR_COLLECTIVES[self.collectives]
        return self.tp if divided else 1

    @property
    def overlaps_collectives(self) -> bool:
        """Whether what they gather and scatter travels beside the matmuls."""
        return TENSOR_COLLECTIVES[self.collectives][1] != "reference"

    def for_layer(self, layer: LayerSpec) -> "LayerParallelism":
        """The same for a layer, which may take all positions whatever the plan says."""
        return self if layer.sequence_parallel else dataclasses.replace(self, collectives="reduce")

    def group_size(self, kernel: Kernel) -> int:
        """How many a collective joins."""
        return self.tp if kernel.rank_group == "tensor" else self.ep


@runtime_checkable
class CostModel(Protocol):
    """What a plan's costs are made of.

    Attributes:
        element_bytes: Bytes of a number in compute precision.
        collectives: What a planner's tensor ranks do around split matmuls (`UnitPlan.collectives`).
        peak_flops: Of one device; 0 where it is not known.
        node_devices: Devices of a node; device numbers go through a node before the next.
    """

    element_bytes: int
    collectives: str
    peak_flops: float
    devices_per_node: int

    def forward(self, layer: LayerSpec, loads: Loads, ranks: LayerParallelism, stack: int = 1) -> LayerSeconds:
        """The forward of one layer of `stack` equal ones, for each load of an instance, on one of its devices."""
        ...

    def backward(
        self,
        layer: LayerSpec,
        loads: Loads,
        ranks: LayerParallelism,
        turns: tuple[str, ...],
        recompute: str,
        stack: int = 1,
    ) -> LayerSeconds:
        """Its backward: the gradients in `turns`, and what a choice of recomputation computes again for them.

        Turns are `data`, the gradient of its input, and `weights`, that of its parameters.
        """
        ...

    def gather_weights(self, parameters: float, dp: int, inside: bool) -> float:
        """Compute weights from masters that `dp` data and sequence ranks divide; `inside` one node or over several."""
        ...

    def reduce_gradients(self, parameters: float, dp: int, inside: bool) -> float:
        """The sum of float32 gradients of `dp` data and sequence ranks, each left with a share."""
        ...

    def gradient_norm(self, stages: int) -> float:
        """What all devices wait for between reductions and updates: the norm of all stages' gradients."""
        ...

    def optimizer_update(self, parameters: float, dp: int) -> float:
        """The optimizer over so many parameters of a device, on `dp` instances at once."""
        ...

    def hop(self, size: Times, inside: bool, devices: int) -> Times:
        """`size` bytes from one device to another; all instances and ranks of both ends are so many devices."""
        ...


def useful_flops(layer: LayerSpec, loads: Loads, turns: tuple[str, ...]) -> Times:
    """FLOPs of the forward and of the turns of the backward that the model needs, of all an instance's devices.

    Each turn of a matmul is one more; attention has no parameters, and two gradients of its inputs.
    """

    def forwards(kernel: Kernel) -> int:
        return 1 + (2 * ("dgrad" in turns) if kernel.kind == "attention" else len(turns))

    parts = [kernel.flops.at(loads) * forwards(kernel) for kernel in layer.kernels]
    return np.asarray(sum(parts, start=np.zeros(loads.shape[:-1])))


def ring_seconds(size: Times, ranks: int, link: Link) -> Times:
    """An all-gather or reduce-scatter by a ring: every rank sends all but one share (Thakur et al. 2005)."""
    if ranks == 1:
        return np.zeros_like(size)
    return np.asarray((ranks - 1) * (link.latency + size / ranks / link.bandwidth))
