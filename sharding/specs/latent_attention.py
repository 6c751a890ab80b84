"""A transformer block with latent attention: the plain block's spec with its attention replaced.

`transformer.py` makes blocks with latent attention by `with_latent_attention`.
"""

import dataclasses

from configs.attention.latent_attention import LatentAttentionConfig
from configs.modules.backbone import BackboneConfig
from sharding.specs.layers.layer import (
    Kernel,
    LayerSpec,
    PerLoad,
    RecomputePolicy,
    SavedActivations,
    all_gather,
    matmul,
    memory_bound,
)


def with_latent_attention(block: LayerSpec, config: BackboneConfig, latent: LatentAttentionConfig) -> LayerSpec:
    """A block with keys and values that are expanded from latent vectors.

    Args:
        block: Built from the same configuration, as if keys and values were as wide as queries.
        config: The backbone's architecture.
        latent: Widths of the latent attention.
    """
    width, query_width, value_width = config.width, config.query_width, config.heads * latent.value_width
    names = [kernel.name for kernel in block.kernels]
    start, end = names.index("attention_norm") + 1, names.index("output")
    (attention,) = (kernel for kernel in block.kernels if kernel.name == "attention")
    expanded = config.heads * (latent.nope_width + latent.value_width)
    compressed = latent.kv_rank + latent.rope_width
    fp8 = "attention" in config.fp8
    kernels = (
        *_query_kernels(width, query_width, latent, fp8),
        matmul("latent", width, compressed, split=False, fp8=fp8),
        memory_bound("latent_norm", 2 * latent.kv_rank, split=False),
        all_gather(compressed),
        matmul("key_value", latent.kv_rank, expanded, fp8=fp8),
        memory_bound("rotary", 4 * query_width),  # and joining the two pieces of queries and of keys
        _attention(attention, query_width, value_width),
        matmul("output", value_width, width, split_by="rows", fp8=fp8),
    )
    split, replicated = _parameters(width, query_width, expanded, latent)
    return dataclasses.replace(
        block,
        kernels=(*block.kernels[:start], *kernels, *block.kernels[end + 1 :]),
        parameters=block.parameters - 4 * width * query_width + split + value_width * width,
        replicated_parameters=block.replicated_parameters + replicated,
        saved={policy: _saved(policy, saved, config, latent) for policy, saved in block.saved.items()},
    )


def _query_kernels(width: int, query_width: int, latent: LatentAttentionConfig, fp8: bool) -> tuple[Kernel, ...]:
    rank = latent.query_rank
    if not rank:
        return all_gather(width), matmul("query", width, query_width, fp8=fp8)
    return (
        matmul("query_down", width, rank, split=False, fp8=fp8),
        memory_bound("query_norm", 2 * rank, split=False),
        all_gather(rank),
        matmul("query", rank, query_width, fp8=fp8),
    )


def _attention(attention: Kernel, query_width: int, value_width: int) -> Kernel:
    """The kernel with values of another width than keys'; half of its FLOPs are spent on the values."""

    def narrower(flops: PerLoad) -> PerLoad:
        return PerLoad(*(amount * (query_width + value_width) // (2 * query_width) for amount in flops.columns))

    return dataclasses.replace(
        attention,
        flops=narrower(attention.flops),
        masked_flops=narrower(attention.masked_flops),
        activations=PerLoad(2 * query_width + 2 * value_width),
        ring_elements=PerLoad(query_width + value_width),
    )


def _parameters(width: int, query_width: int, expanded: int, latent: LatentAttentionConfig) -> tuple[int, int]:
    """Elements of the projections before attention and their norms: (divided by tensor ranks, the others)."""
    rank = latent.query_rank
    split = (rank or width) * query_width + latent.kv_rank * expanded
    return split, width * (rank + latent.kv_rank + latent.rope_width) + rank + latent.kv_rank


def _saved(
    policy: RecomputePolicy, block: SavedActivations, config: BackboneConfig, latent: LatentAttentionConfig
) -> SavedActivations:
    """Activations that the block saves: queries, keys and values of their own widths, and the latent vectors."""
    if policy in ("offload", "full"):
        return block
    query_width, value_width = config.query_width, config.heads * latent.value_width
    results = latent.query_rank + latent.kv_rank + latent.rope_width
    if policy == "selective":
        expanded = config.heads * (latent.nope_width + latent.value_width)
        return SavedActivations(
            block.split + PerLoad(query_width + expanded - 3 * query_width), block.replicated + PerLoad(results)
        )
    # Attention saves its inputs and output, and the output projection its input; norms and expansions their inputs.
    return SavedActivations(
        block.split + PerLoad(3 * (value_width - query_width)),
        block.replicated + PerLoad(2 * (latent.query_rank + latent.kv_rank)),
    )
