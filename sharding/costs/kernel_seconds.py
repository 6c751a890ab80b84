"""Seconds of every kernel of a layer on one device: its forward, and the two gradients of its backward.

The analytic cost model sums these seconds over a layer.
"""

import dataclasses
import itertools
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from configs.clusters import ClusterConfig
from sharding.costs.attention_seconds import attention_arithmetic
from sharding.costs.cost_model import LayerParallelism, Times
from sharding.costs.matmul_seconds import MatmulSizes, matmul_seconds
from sharding.specs.layers.layer import COLLECTIVE_KINDS, MATMUL_KINDS, ZERO, Kernel, LayerSpec, Loads

# What a kernel's dgrad moves in units of its forward. The backward of a norm or an activation function reads what its
# forward read, and the gradient; the backward of attention reads queries, keys, values, output and its gradient, and
# writes the gradients of the first three.
_BACKWARD_TRAFFIC = {"memory": 1.5, "attention": 2.0}
_KEPT = 256  # answers of `KernelCosts.passes`


def matmuls_beside(layer: LayerSpec, number: int) -> list[int]:
    """The matmuls that the collective of a number overlaps with: right after an all-gather, right before a scatter."""
    kernels = layer.kernels
    after = kernels[number].kind == "all_gather"
    neighbours = range(number + 1, len(kernels)) if after else range(number - 1, -1, -1)
    return list(itertools.takewhile(lambda other: kernels[other].kind == "matmul", neighbours))


class PassSeconds(NamedTuple):
    """Seconds of every kernel for every load, 0 for collectives.

    Attributes:
        forward: Seconds of the forward.
        dgrad: Seconds of the gradients of the inputs; of attention, of all its backward.
        wgrad: Seconds of the gradients of the weights.
    """

    forward: Float[np.ndarray, "*shape k"]
    dgrad: Float[np.ndarray, "*shape k"]
    wgrad: Float[np.ndarray, "*shape k"]


@dataclasses.dataclass(frozen=True, eq=False)
class KernelCosts:
    """Seconds of kernels on a device.

    Attributes:
        cluster: The devices.
        memory_bandwidth: Bytes per second that kernels reach.
        launch: Seconds from one kernel launch to the next.
        element_bytes: Bytes of an element in compute precision.
    """

    cluster: ClusterConfig
    memory_bandwidth: float
    launch: float
    element_bytes: int
    _known: dict[tuple, tuple[LayerSpec, PassSeconds]] = dataclasses.field(default_factory=dict, repr=False)

    def passes(self, layer: LayerSpec, loads: Loads, ranks: LayerParallelism) -> PassSeconds:
        """Seconds of a layer's kernels.

        Forward and backward, with every recomputation policy, ask for the same; the latest answers are kept.

        Args:
            layer: The layer.
            loads: Loads of a context-parallel rank.
            ranks: The ranks that compute the layer.
        """
        steps = ranks.context_steps
        key = (id(layer), ranks.tp, steps, ranks.ep, ranks.collectives, loads.shape, loads.tobytes())
        if key not in self._known:
            if len(self._known) >= _KEPT:
                self._known.pop(next(iter(self._known)))
            self._known[key] = (layer, self._compute(layer, loads, ranks))  # the layer is held, so that its id stays
        return self._known[key][1]

    def _compute(self, layer: LayerSpec, loads: Loads, ranks: LayerParallelism) -> PassSeconds:
        kernels = layer.kernels
        traffic = self._traffic(layer, loads, ranks)
        seconds = np.repeat(traffic[None], 3, axis=0)  # of [forward, dgrad, wgrad]
        for number, kernel in enumerate(kernels):
            if kernel.kind in _BACKWARD_TRAFFIC:
                seconds[1, ..., number] *= _BACKWARD_TRAFFIC[kernel.kind]
            if kernel.kind == "attention":
                share = 1 / ranks.tp if kernel.split else 1.0
                share *= self.cluster.generation.effects.throttling
                for way, arithmetic in enumerate(attention_arithmetic(kernel, loads, self.cluster)):
                    seconds[way, ..., number] = np.maximum(seconds[way, ..., number], arithmetic * share)
        for is_fp8 in (False, True):
            matmuls = [
                number
                for number, kernel in enumerate(kernels)
                if kernel.kind in MATMUL_KINDS and self._multiplies_fp8(kernel) == is_fp8
            ]
            if matmuls:
                arithmetic = self._matmuls(layer, loads, ranks, matmuls, fp8=is_fp8)
                arithmetic = arithmetic * self._slowdowns(layer, ranks)[matmuls]
                seconds[..., matmuls] = np.maximum(seconds[..., matmuls], arithmetic)
        rounded = [number for number, kernel in enumerate(kernels) if kernel.fp8]
        if rounded:
            seconds[..., rounded] += self._rounding(layer, loads, ranks, rounded)
        launches = np.array([ranks.context_steps if kernel.ring_elements != ZERO else 1 for kernel in kernels])
        launches = launches * self._parts(layer, ranks)
        is_computed = np.array([kernel.kind not in COLLECTIVE_KINDS for kernel in kernels], bool)
        runs = (loads != 0).any(axis=-1)[..., None] & is_computed
        has_weights = np.array([kernel.kind in MATMUL_KINDS for kernel in kernels], bool)
        forward, dgrad, wgrad = np.where(runs, seconds + launches * self.launch, 0.0)
        return PassSeconds(forward, dgrad, np.where(has_weights, wgrad, 0.0))

    def accumulation(self, layer: LayerSpec, loads: Loads, ranks: LayerParallelism) -> Times:
        """Seconds of adding a microbatch's gradients to the float32 sums: these are read and written."""
        parameters = layer.parameters_per_rank(ranks.tp) + layer.expert_parameters_per_rank(ranks.tp, ranks.ep)
        seconds = parameters * (self.element_bytes + 8) / self.memory_bandwidth
        return np.where((loads != 0).any(axis=-1), seconds, 0.0)

    def _traffic(self, layer: LayerSpec, loads: Loads, ranks: LayerParallelism) -> Float[np.ndarray, "*shape k"]:
        """Seconds of reading inputs and weights and writing outputs."""
        arrays = layer.kernel_arrays
        whole = np.array([1 / ranks.sequence_shards if kernel.kind == "memory" else 1.0 for kernel in layer.kernels])
        share = np.where(arrays.split, 1 / ranks.tp, whole)
        weights = arrays.weights * np.where(arrays.split, share, 1.0) / np.where(arrays.expert, ranks.ep, 1)
        return self.element_bytes * (loads @ arrays.activations.T * share + weights) / self.memory_bandwidth

    def _matmuls(
        self, layer: LayerSpec, loads: Loads, ranks: LayerParallelism, numbers: list[int], *, fp8: bool
    ) -> Float[np.ndarray, "3 *shape m"]:
        """Seconds of matmuls of these numbers: forward, dgrad and wgrad, by the sizes of each.

        With x [rows, inner] and w [inner, outer], dgrad is dy wᵀ and wgrad is xᵀ dy. Beside a ring collective each is
        as many matmuls as there are ranks, each of that share of the rows.
        """
        kernels = [layer.kernels[number] for number in numbers]
        inner, outer, groups, split = np.ones((4, len(kernels)))
        for place, kernel in enumerate(kernels):
            parts = ranks.tp if kernel.split else 1
            inner[place] = kernel.inner / (parts if kernel.split_by == "rows" else 1)
            outer[place] = kernel.outer / (parts if kernel.split_by == "columns" else 1)
            split[place] = parts if kernel.split_by == "groups" else 1
            groups[place] = kernel.groups / split[place] / (ranks.ep if kernel.rank_group == "expert" else 1)
        sizes = np.array([kernel.inner * kernel.outer for kernel in kernels], float)
        parts = self._parts(layer, ranks)[numbers]
        rows = loads @ layer.kernel_arrays.flops[numbers].T / (2 * sizes) / split / groups / parts
        inner, outer = np.broadcast_to(inner, rows.shape), np.broadcast_to(outer, rows.shape)
        by_pass = MatmulSizes(
            rows=np.stack([rows, rows, inner]),
            outer=np.stack([outer, inner, outer]),
            inner=np.stack([inner, outer, rows]),
            count=groups,
        )
        return parts * matmul_seconds(by_pass, self.cluster, self.element_bytes, self.memory_bandwidth, fp8=fp8)

    def _multiplies_fp8(self, kernel: Kernel) -> bool:
        """Whether the devices multiply FP8 operands; others multiply the rounded values in the precision they had."""
        return kernel.fp8 and self.cluster.generation.fp8_rate > 1

    def _rounding(
        self, layer: LayerSpec, loads: Loads, ranks: LayerParallelism, numbers: list[int]
    ) -> Float[np.ndarray, "3 *shape m"]:
        """Seconds of rounding the operands of matmuls of these numbers to FP8: forward, dgrad and wgrad.

        An array is read for its largest magnitude, and read again and written in FP8. The wgrad takes the cotangent as
        the dgrad rounded it.
        """
        share = np.array([1 / ranks.tp if layer.kernels[number].split else 1.0 for number in numbers])
        weights, x, cotangent = (np.zeros((len(numbers), size)) for size in (1, loads.shape[-1], loads.shape[-1]))
        for place, number in enumerate(numbers):
            kernel = layer.kernels[number]
            elements = np.array(kernel.activations.columns, float) / (kernel.inner + kernel.outer)
            by_rows = kernel.split and kernel.split_by == "rows"
            weights[place] = kernel.weights * share[place]
            x[place] = elements * kernel.inner * (share[place] if by_rows else 1.0)
            cotangent[place] = elements * kernel.outer * (1.0 if by_rows else share[place])
        of_weights, of_x, of_cotangent = weights[:, 0], loads @ x.T, loads @ cotangent.T
        elements = np.stack([of_x + of_weights, of_cotangent + of_weights, of_x])
        return (2 * self.element_bytes + 1) * elements / self.memory_bandwidth

    def _slowdowns(self, layer: LayerSpec, ranks: LayerParallelism) -> Float[np.ndarray, " k"]:
        """How many times as long as a matmul of its shape each kernel takes (`CostEffects`)."""
        effects = self.cluster.generation.effects
        slowdowns = np.full(len(layer.kernels), effects.throttling)
        for number, kernel in enumerate(layer.kernels):
            if kernel.kind == "convolution":
                slowdowns[number] /= effects.convolution_share
            if kernel.rank_group == "expert" and ranks.ep > 1:  # the fullest rank is waited for
                slowdowns[number] *= effects.imbalance
        return slowdowns

    def _parts(self, layer: LayerSpec, ranks: LayerParallelism) -> Float[np.ndarray, " k"]:
        """Returns the number of launches of each kernel: a matmul beside a ring runs in as many as there are ranks."""
        parts = np.ones(len(layer.kernels))
        if ranks.overlaps_collectives:
            for number, kernel in enumerate(layer.kernels):
                if kernel.kind in COLLECTIVE_KINDS and kernel.rank_group == "tensor":
                    parts[matmuls_beside(layer, number)] = ranks.tp
        return parts
