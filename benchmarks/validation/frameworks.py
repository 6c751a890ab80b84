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
from sharding.plans.resolved.trained_parts import Gradient
from sharding.specs.layers.layer import Kernel, LayerSpec, Loads, PerLoad, RecomputePolicy, memory_bound

_CORE = "core_"  # names of the kernels of attention between its projections


def replace_kernels(layer: LayerSpec, replacements: Mapping[str, tuple[Kernel, ...]]) -> LayerSpec:
    """The layer with every kernel of a name replaced."""
    kernels = [replacements.get(kernel.name, (kernel,)) for kernel in layer.kernels]
    return dataclasses.replace(layer, kernels=tuple(kernel for group in kernels for kernel in group))


def unfused_attention(model: BackboneConfig, length: int, segments: int) -> tuple[Kernel, ...]:
    """Scores, their softmax and dropout, and the weighted sums, each a kernel over whole squares.

    Args:
        model: The language model.
        length: Positions of each sequence.
        segments: Sequences of a microbatch.
    """
    width, heads = model.width, model.heads

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
        product("scores", model.head_width, length),
        Kernel(f"{_CORE}softmax", "memory", activations=PerLoad(squared_lengths=2 * heads)),
        Kernel(f"{_CORE}dropout", "memory", activations=PerLoad(squared_lengths=2.5 * heads)),
        product("values", length, model.head_width),
    )


def megatron_2022(layer: LayerSpec, model: BackboneConfig, length: int, segments: int) -> LayerSpec:
    """Megatron-LM of arXiv 2205.05198: unfused attention; bias, dropout and residual in one kernel with a mask."""
    return replace_kernels(
        layer,
        {
            "attention": unfused_attention(model, length, segments),
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
class AttentionRecomputed(AnalyticCostModel):
    """Costs where selective recomputation computes attention again, and nothing else (arXiv 2205.05198, section 5)."""

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
        core = tuple(kernel for kernel in layer.kernels if kernel.name.startswith(_CORE))
        if not gradients or not core:
            return seconds
        again = super().forward(dataclasses.replace(layer, kernels=core), loads, ranks, stack)
        return LayerSeconds(*(np.add(*pair) for pair in zip(seconds, again, strict=True)))

    def optimizer_update(self, parameters: float, dp: int) -> float:
        """Besides Adam's 28 bytes: norm 4, clipping 8, weights read and cast 6, gradients set to zero 4."""
        return 50 * parameters / (self.cluster.memory_bandwidth * self.efficiency.memory)


def with_first_flash_attention(cluster: ClusterConfig) -> ClusterConfig:
    """The devices with FlashAttention of 2022: 30-50% of the peak forward, 25-35% backward (arXiv 2307.08691)."""
    rate = AttentionRate(64, 0.40, 0.30)
    return dataclasses.replace(cluster, generation=dataclasses.replace(cluster.generation, attention=(rate,)))


A100 = CLUSTERS["a100"]
