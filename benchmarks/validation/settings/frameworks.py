"""The kernels of the frameworks that published runs were measured with, where they are not ours.

Elements are of two bytes, per token; the backward of a kernel bound by memory moves 1.5 times as much.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np

from configs.clusters import CLUSTERS, ClusterConfig
from configs.device_generations import AttentionRate
from configs.modules.backbone import BackboneConfig
from sharding.costs.analytic import AnalyticCostModel
from sharding.costs.cost_model import LayerParallelism, LayerSeconds
from sharding.costs.node_placement import NodePlacement
from sharding.plans.resolved.trained_parts import Gradient
from sharding.specs.layers.layer import Kernel, LayerSpec, Loads, PerLoad, RecomputePolicy, memory_bound

_CORE = "core_"  # names of the kernels of attention between its projections


def replace_kernels(layer: LayerSpec, replacements: Mapping[str, tuple[Kernel, ...]]) -> LayerSpec:
    """The layer with every kernel of a name replaced."""
    kernels = [replacements.get(kernel.name, (kernel,)) for kernel in layer.kernels]
    return dataclasses.replace(layer, kernels=tuple(kernel for group in kernels for kernel in group))


def unfused_attention(
    width: int, heads: int, length: int, segments: int, *, dropout: bool = True
) -> tuple[Kernel, ...]:
    """Scores, their softmax and dropout, and the weighted sums, each a kernel over whole squares.

    Args:
        width: Width of the model.
        heads: Its heads.
        length: Positions of each sequence.
        segments: Sequences of a microbatch.
        dropout: Whether there is dropout.
    """

    def product(name: str, inner: int, outer: int) -> Kernel:
        return Kernel(
            f"{_CORE}{name}",
            "matmul",
            flops=PerLoad(squared_lengths=2 * width),
            activations=PerLoad(2 * width, heads),
            inner=inner,
            outer=outer,
            groups=heads * segments,
            split_by="groups",
        )

    return (
        product("scores", width // heads, length),
        Kernel(f"{_CORE}softmax", "memory", activations=PerLoad(squared_lengths=2 * heads)),
        *([Kernel(f"{_CORE}dropout", "memory", activations=PerLoad(squared_lengths=2.5 * heads))] if dropout else []),
        product("values", length, width // heads),
    )


def megatron_2022(layer: LayerSpec, model: BackboneConfig, length: int, segments: int) -> LayerSpec:
    """Megatron-LM of arXiv 2205.05198: unfused attention; bias, dropout and residual in one kernel with a mask."""
    return replace_kernels(
        layer,
        {
            "attention": unfused_attention(model.width, model.heads, length, segments),
            "residual": (memory_bound("bias_dropout_add", 3.5 * model.width, split=False),),
            "rotary": (),
        },
    )


def flash_attention_training(layer: LayerSpec, model: BackboneConfig) -> LayerSpec:
    """The GPTs of FlashAttention's repository: float32 residuals, fused GELU, float32 weights cast in every microbatch.

    The norm, the dropout and the residual are one kernel, which reads a bfloat16 input, a float32 residual and writes
    both, and a mask. The matmul before the activation function writes its input and its output.
    """
    cast = Kernel("cast", "memory", weights=3 * layer.parameter_count)  # reads 4 bytes, writes 2
    layer = replace_kernels(
        layer,
        {
            "residual": (memory_bound("residual", 4.5 * model.width, split=False),),
            "activation": (memory_bound("activation", model.ffn),),
            "loss": (memory_bound("loss", 2 * model.vocabulary),),  # of bfloat16 logits, gradients in their place
        },
    )
    return dataclasses.replace(layer, kernels=(*layer.kernels, cast))


def internlm(layer: LayerSpec, model: BackboneConfig) -> LayerSpec:
    """InternLM of 2023: the gate's activation function and its product are two kernels."""
    return replace_kernels(
        layer, {"activation": (memory_bound("silu", 2 * model.ffn), memory_bound("gate", 3 * model.ffn))}
    )


@dataclasses.dataclass(frozen=True)
class ReductionsOverlapped(AnalyticCostModel):
    """Costs of frameworks that gather weights and reduce gradients beside the computation of other layers.

    Nothing of it is taken to be waited for; our executor gathers and reduces between steps (docs/reference/costs.md).
    """

    def gather_weights(self, parameters: float, ranks: NodePlacement) -> float:
        """See `CostModel.gather_weights`."""
        return 0.0

    def reduce_gradients(self, parameters: float, ranks: NodePlacement) -> float:
        """See `CostModel.reduce_gradients`."""
        return 0.0


@dataclasses.dataclass(frozen=True)
class HalfPrecisionGradients(AnalyticCostModel):
    """Costs of frameworks that reduce gradients of two bytes."""

    def reduce_gradients(self, parameters: float, ranks: NodePlacement) -> float:
        """See `CostModel.reduce_gradients`."""
        return super().reduce_gradients(parameters / 2, ranks)


@dataclasses.dataclass(frozen=True)
class KernelsRecomputed(AnalyticCostModel):
    """Costs where selective recomputation computes some kernels again, and nothing else.

    Attributes:
        names: Names of the kernels, or how they begin.
        half: Names of matmuls of which half of the columns are computed again.
    """

    names: tuple[str, ...] = ()
    half: tuple[str, ...] = ()

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
        if recompute != "selective":
            return super().backward(layer, loads, ranks, gradients, recompute, stack)
        seconds = super().backward(layer, loads, ranks, gradients, "none", stack)
        kernels = tuple(kernel for kernel in layer.kernels if kernel.name.startswith(self.names))
        kernels += tuple(_half(kernel) for kernel in layer.kernels if kernel.name in self.half)
        if not gradients or not kernels:
            return seconds
        again = super().forward(dataclasses.replace(layer, kernels=kernels), loads, ranks, stack)
        return LayerSeconds(*(np.add(*pair) for pair in zip(seconds, again, strict=True)))


def _half(kernel: Kernel) -> Kernel:
    return dataclasses.replace(
        kernel,
        flops=kernel.flops * 0.5,
        activations=kernel.activations * 0.5,
        weights=kernel.weights / 2,
        outer=kernel.outer / 2,
    )


@dataclasses.dataclass(frozen=True)
class AttentionRecomputed(KernelsRecomputed):
    """Costs where selective recomputation computes attention again, and nothing else (arXiv 2205.05198, section 5)."""

    names: tuple[str, ...] = (_CORE,)

    def optimizer_update(self, parameters: float, dp: int) -> float:
        """Besides Adam's 28 bytes: norm 4, clipping 8, weights read and cast 6, gradients set to zero 4."""
        return 50 * parameters / (self.cluster.memory_bandwidth * self.efficiency.memory)


def with_first_flash_attention(cluster: ClusterConfig) -> ClusterConfig:
    """The devices with FlashAttention of 2022: 30-50% of the peak forward, 25-35% backward (arXiv 2307.08691)."""
    return _with_attention(cluster, AttentionRate(64, 0.40, 0.30))


def with_second_flash_attention(cluster: ClusterConfig) -> ClusterConfig:
    """H100s with FlashAttention-2, which was written for A100s (arXiv 2407.08608, figures 5 and 6)."""
    return _with_attention(cluster, AttentionRate(64, 324 / 989, 291 / 989), AttentionRate(128, 370 / 989, 322 / 989))


def with_triton_attention(cluster: ClusterConfig) -> ClusterConfig:
    """H100s with the Triton kernel of 2022: its 160 and 110 TFLOP/s on A100s (arXiv 2307.08691, figures 5 and 6).

    It is taken to gain on H100s as much as FlashAttention-2 does, from 227 to 370 TFLOP/s.
    """
    return _with_attention(cluster, AttentionRate(64, 160 / 989 * 370 / 227, 110 / 989 * 370 / 227))


def _with_attention(cluster: ClusterConfig, *rates: AttentionRate) -> ClusterConfig:
    return dataclasses.replace(cluster, generation=dataclasses.replace(cluster.generation, attention=rates))


A100 = CLUSTERS["a100"]
