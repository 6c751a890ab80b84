"""Transformer blocks and backbones as layers, from the dataclasses that their Flax modules are built from.

Specs of encoders, and `module_graph` for the backbone, are made of these layers.
"""

import dataclasses
from typing import NamedTuple

from configs.architectures import BackboneConfig, ModelConfig
from configs.modules.block_runs import has_experts_at
from configs.modules.transformer import TransformerConfig
from sharding.specs.experts import with_experts
from sharding.specs.latent_attention import with_latent_attention
from sharding.specs.layers.attention_runs import attention_runs, with_local_attention
from sharding.specs.layers.layer import (
    ZERO,
    Kernel,
    LayerSpec,
    PerLoad,
    SavedActivations,
    all_gather,
    matmul,
    memory_bound,
    reduce_scatter,
    saved_by_policy,
)
from sharding.specs.layers.local_attention import is_local_layer
from sharding.specs.layers.module_spec import EARLY_BLOCK


class BackboneLayers(NamedTuple):
    """The layers of a backbone.

    Attributes:
        leading: The embedding, and the first blocks that do not belong to the stack.
        runs: The runs of equal blocks of the stack: pairs (layer, count).
        trailing: The norm with the head.
    """

    leading: tuple[LayerSpec, ...]
    runs: tuple[tuple[LayerSpec, int], ...]
    trailing: tuple[LayerSpec, ...]


def backbone_layers(config: ModelConfig) -> BackboneLayers:
    """The layers of a backbone; its embedding hands on features for the blocks that take them (DeepStack)."""
    backbone = config.backbone
    dense = _backbone_block(backbone)
    block = with_experts(dense, backbone, backbone.experts) if backbone.experts else dense
    width, early = backbone.width, config.early_blocks
    embedding = dataclasses.replace(_token_embedding(backbone), output_elements=PerLoad((1 + early) * width))
    first = []
    for number in range(early):
        layer = block if has_experts_at(backbone.experts, number) else dense
        layer = with_local_attention(layer) if is_local_layer(backbone, number) else layer
        first.append(_with_feature(layer, f"{EARLY_BLOCK}{number}", width, early - number))
    runs: list[tuple[LayerSpec, int]] = []
    for run in backbone.block_runs(early):
        layer = dataclasses.replace(block if run.has_experts else dense, name=run.name)
        runs += attention_runs(layer, backbone, run.first, run.count)
    return BackboneLayers((embedding, *first), tuple(runs), (_head(backbone),))


def _backbone_block(config: BackboneConfig) -> LayerSpec:
    """A block of a backbone, with a feed-forward layer."""
    block = block_layer(config, causal=True, rotary=config.positions == "rotary")
    latent = config.latent_attention
    return block if latent is None else with_latent_attention(block, config, latent)


def _with_feature(block: LayerSpec, name: str, width: int, features: int) -> LayerSpec:
    """A block to whose output the first of some features is added; it hands on the others."""
    kernels = (*block.kernels, memory_bound("feature", 3 * width, split=False))
    return dataclasses.replace(block, name=name, kernels=kernels, output_elements=PerLoad(features * width))


def block_layer(config: TransformerConfig, *, causal: bool, rotary: bool) -> LayerSpec:
    """One transformer block: attention and a feed-forward layer, with norms before them, after them, or both.

    Args:
        config: The architecture.
        causal: Whether a position attends only to the positions before it, which halves the FLOPs of attention.
        rotary: Whether queries and keys are rotated by their positions.
    """
    width, query_width, kv_width, ffn = config.width, config.query_width, config.kv_width, config.ffn
    qkv = query_width + 2 * kv_width
    up = (1 + config.gated) * ffn
    attention_norm, mlp_norm = _inner_norms(config)
    attention_fp8, mlp_fp8 = ("attention" in config.fp8), ("mlp" in config.fp8)
    kernels = (
        memory_bound("attention_norm", 2 * width, split=False),
        all_gather(width),
        matmul("query_key_value", width, qkv, fp8=attention_fp8),
        *_qk_norm(config),
        *((memory_bound("rotary", 2 * (query_width + kv_width)),) if rotary else ()),
        Kernel(
            "attention",
            "attention",
            flops=PerLoad(squared_lengths=2 * query_width if causal else 4 * query_width),
            masked_flops=PerLoad(squared_lengths=2 * query_width) if causal else ZERO,
            activations=PerLoad(2 * query_width + 2 * kv_width),
            ring_elements=PerLoad(2 * kv_width),
            head_width=config.head_width,
        ),
        *attention_norm,
        matmul("output", query_width, width, split_by="rows", fp8=attention_fp8),
        reduce_scatter(width),
        *_output_norm(config),
        *(() if config.parallel_block else (_residual(width), *_second_norm(width))),
        matmul("up", width, up, fp8=mlp_fp8),
        memory_bound("activation", up + ffn),
        *mlp_norm,
        matmul("down", ffn, width, split_by="rows", fp8=mlp_fp8),
        reduce_scatter(width),
        *_output_norm(config),
        _residual(width),
    )
    # The inputs of norms, matmuls and scales; attention saves its inputs, and its output before padding is masked, and
    # computes its scores again. Of what enters a sum nothing is saved.
    normed = (query_width + kv_width) * (config.qk_norm != "none")
    normed += query_width * len(attention_norm) + ffn * len(mlp_norm)
    norms, scales = 1 if config.parallel_block else 2, 2 * (config.layer_scale != 0)
    output_norms = 2 * (config.norms == "both")  # besides the norms that are counted before
    replicated, split = _vector_parameters(config)
    return LayerSpec(
        name="blocks",
        part=config.name,
        kernels=kernels,
        parameters=width * (qkv + query_width + up + ffn) + split,
        replicated_parameters=replicated,
        saved={
            "none": SavedActivations(
                PerLoad(qkv + 2 * query_width + up + ffn + normed), PerLoad((2 * norms + scales + output_norms) * width)
            ),
            "selective": SavedActivations(PerLoad(qkv + up), PerLoad((norms + max(scales, output_norms) // 2) * width)),
            "offload": SavedActivations(replicated=PerLoad(width)),
            "full": SavedActivations(replicated=PerLoad(width)),
        },
        output_elements=PerLoad(width),
    )


def _residual(width: int) -> Kernel:
    """Reads the residual stream and what is added to it, and writes their sum; biases and layer scales ride along."""
    return memory_bound("residual", 3 * width, split=False)


def _output_norm(config: TransformerConfig) -> tuple[Kernel, ...]:
    """The second norm of a layer that has one before it and one after it."""
    return (memory_bound("output_norm", 2 * config.width, split=False),) if config.norms == "both" else ()


def _second_norm(width: int) -> tuple[Kernel, ...]:
    return memory_bound("mlp_norm", 2 * width, split=False), all_gather(width)


def _qk_norm(config: TransformerConfig) -> tuple[Kernel, ...]:
    normed = config.query_width + config.kv_width
    return () if config.qk_norm == "none" else (memory_bound("query_key_norm", 2 * normed),)


def _inner_norms(config: TransformerConfig) -> tuple[tuple[Kernel, ...], tuple[Kernel, ...]]:
    """The inner norms of attention and of the feed-forward layer; empty where there is none."""
    attention, mlp = (
        (memory_bound(f"{layer}_inner_norm", 2 * width),) if layer in config.inner_norms else ()
        for layer, width in (("attention", config.query_width), ("mlp", config.ffn))
    )
    return attention, mlp


def norm_parameters(config: TransformerConfig, width: int) -> int:
    """Number of elements of a norm's parameters."""
    return width * (1 + (config.norm == "layernorm" and config.norm_bias))


def _vector_parameters(config: TransformerConfig) -> tuple[int, int]:
    """Elements of norms, biases and scales: (held by each tensor rank, divided by tensor ranks)."""
    width, query_width, kv_width = config.width, config.query_width, config.kv_width
    up = (1 + config.gated) * config.ffn
    norms = 1 if config.parallel_block else 4 if config.norms == "both" else 2
    replicated = norm_parameters(config, width) * norms
    replicated += width * (("output" in config.biases) + ("mlp" in config.biases) + 2 * (config.layer_scale != 0))
    biases = {"query": query_width, "key": kv_width, "value": kv_width, "mlp": up}
    split = sum(size for name, size in biases.items() if name in config.biases)
    split += config.heads * config.attention_sinks
    if config.qk_norm == "head":
        replicated += 2 * norm_parameters(config, config.head_width)
    if config.qk_norm == "width":
        split += norm_parameters(config, query_width + kv_width)
    inner = {"attention": query_width, "mlp": config.ffn}
    return replicated, split + sum(norm_parameters(config, inner[layer]) for layer in config.inner_norms)


def _token_embedding(config: BackboneConfig) -> LayerSpec:
    width = config.width
    return LayerSpec(
        name="embed",
        part=config.name,
        kernels=(memory_bound("lookup", 2 * width), reduce_scatter(width)),
        parameters=config.vocabulary * width,
        replicated_parameters=(config.max_positions * (config.positions == "learned") + config.newline) * width,
        saved=saved_by_policy(SavedActivations(), SavedActivations()),
        output_elements=PerLoad(width),
    )


def _head(config: BackboneConfig) -> LayerSpec:
    """The final norm, the logits in float32 and their loss; tied embeddings are counted where they are owned.

    Logits are computed in chunks of the vocabulary and not saved: the backward computes every chunk again.
    """
    width, vocabulary = config.width, config.vocabulary
    logits, loss = matmul("logits", width, vocabulary), memory_bound("loss", 4 * vocabulary)
    kernels = (
        memory_bound("norm", 2 * width, split=False),
        all_gather(width),
        *(dataclasses.replace(kernel, always_recomputed=True) for kernel in (logits, loss)),
    )
    sums = 4 * 2  # of the logits of a token, in float32: twice the bytes of an element in compute precision
    inputs = SavedActivations(replicated=PerLoad(width + sums))
    return LayerSpec(
        name="head",
        part=config.name,
        kernels=kernels,
        parameters=0 if config.tie_embeddings else vocabulary * width,
        replicated_parameters=norm_parameters(config, width),
        saved={
            "none": SavedActivations(replicated=PerLoad(2 * width + sums)),
            "selective": inputs,
            "offload": inputs,
            "full": inputs,
        },
        # Generators take single positions, which is next to nothing; `ModuleSpec.extra_input` counts them.
        output_elements=PerLoad(),
    )
