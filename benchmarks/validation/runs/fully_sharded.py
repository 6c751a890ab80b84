"""Fully sharded language models: torchtitan, MaxText, Pax, fms-fsdp, and MPT on H100s."""

import dataclasses
from typing import NamedTuple

from benchmarks.validation.runs.megatron import gpt
from benchmarks.validation.runs.nemo_pipelines import LLAMA_3_8B, LLAMA_3_70B
from benchmarks.validation.settings.frameworks import (
    KernelsRecomputed,
    with_first_flash_attention,
    with_second_flash_attention,
    with_triton_attention,
)
from benchmarks.validation.settings.published import PublishedRun
from benchmarks.validation.settings.setting import Setting, language_graph, sequence_load
from configs.clusters import CLUSTERS, ClusterConfig
from configs.modules.backbone import BackboneConfig
from sharding.specs.layers.layer import RecomputePolicy


def _llama_2(width: int, depth: int, heads: int, kv_heads: int, ffn: int) -> BackboneConfig:
    return BackboneConfig(width=width, depth=depth, heads=heads, kv_heads=kv_heads, ffn=ffn, vocabulary=32000)


def _mpt(width: int, depth: int, heads: int) -> BackboneConfig:
    return gpt(width, depth, heads, vocabulary=50368)


# Of torchtitan's hosts: H100s of 500 W with 96 GB of HBM2e. Power grows with the third power of the clock.
_H100_500W = with_second_flash_attention(
    dataclasses.replace(
        CLUSTERS["h100"],
        name="h100_500w",
        memory=96e9,
        memory_bandwidth=2.4e12,
        generation=dataclasses.replace(
            CLUSTERS["h100"].generation, power_share=CLUSTERS["h100"].generation.power_share * 500 / 700
        ),
    )
)
_MEMORY_BOUND = ("attention_norm", "mlp_norm", "rotary", "activation", "residual")
_POLICIES: dict[str, tuple[RecomputePolicy, tuple[str, ...], tuple[str, ...]]] = {
    "none": ("none", (), ()),
    "full": ("full", (), ()),
    "elementwise": ("selective", (*_MEMORY_BOUND, "attention"), ()),
    "op": ("selective", (*_MEMORY_BOUND, "output"), ("up",)),  # torchtitan: every second matmul
    "mlpwi": ("selective", (*_MEMORY_BOUND, "attention", "up"), ()),  # MaxText's save_dot_except_mlpwi
    "qkv": ("selective", (*_MEMORY_BOUND, "attention", "output", "up"), ()),  # MaxText's save_qkv_proj
}
"""By name, the policy of mmjax, and where it is `selective` the kernels that are computed again, wholly and by half."""


class _Row(NamedTuple):
    """A run: its model, and seconds of a step; the weights are divided over `shards` devices."""

    model: str
    length: int
    devices: int
    shards: int
    microbatch: int
    microbatches: int
    policy: str
    seconds: float
    tp: int = 1


_MODELS = {
    "Llama 2 7B": _llama_2(4096, 32, 32, 32, 11008),
    "Llama 2 13B": _llama_2(5120, 40, 40, 40, 13824),
    "Llama 2 70B": _llama_2(8192, 80, 64, 8, 28672),
    "Llama 3 8B": LLAMA_3_8B,
    "Llama 3 70B": LLAMA_3_70B,
    "GPT 5B": gpt(4096, 24, 32, vocabulary=50304),
    "GPT 175B": gpt(12288, 96, 96, vocabulary=50257),
    "MPT-1B": _mpt(2048, 24, 16),
    "MPT-7B": _mpt(4096, 32, 32),
    "MPT-13B": _mpt(5120, 40, 40),
    "MPT-30B": _mpt(7168, 48, 56),
    "MPT-70B": _mpt(8192, 80, 64),
}

_TABLES: tuple[tuple[str, str, ClusterConfig, tuple[_Row, ...]], ...] = (
    (
        "torchtitan",
        "pytorch/torchtitan, docs/performance.md (April 2024)",
        CLUSTERS["a100"],
        (
            _Row("Llama 2 13B", 4096, 64, 64, 2, 1, "none", 3.789),
            _Row("Llama 2 13B", 4096, 64, 64, 2, 1, "op", 4.303),
            _Row("Llama 2 70B", 4096, 64, 64, 1, 1, "op", 11.538),
            _Row("Llama 2 70B", 4096, 64, 64, 2, 1, "full", 23.207),
            _Row("Llama 3 8B", 8192, 64, 64, 1, 1, "op", 2.755),
            _Row("Llama 3 70B", 8192, 64, 64, 1, 1, "full", 24.749),
        ),
    ),
    (
        "torchtitan",
        "pytorch/torchtitan, benchmarks/llama3_h100_202412 and asyncTP_llama3_h100_2025-06",
        _H100_500W,
        (
            _Row("Llama 3 8B", 8192, 8, 8, 2, 1, "op", 2.457),
            _Row("Llama 3 8B", 8192, 128, 128, 2, 1, "op", 2.515),
            _Row("Llama 3 70B", 8192, 256, 32, 16, 1, "full", 27.43, tp=8),
        ),
    ),
    (
        "MaxText",
        "NVIDIA/dgxc-benchmarking, maxtext, releases 25.01 and 25.04 (2025)",
        CLUSTERS["h100"],
        (
            _Row("Llama 2 70B", 4096, 64, 64, 2, 1, "mlpwi", 6.999),
            _Row("Llama 2 70B", 4096, 256, 256, 2, 1, "mlpwi", 7.153),
            _Row("Llama 2 70B", 4096, 2048, 128, 2, 1, "mlpwi", 7.066),
            _Row("Llama 3 70B", 8192, 128, 128, 2, 1, "qkv", 15.563),
            _Row("Llama 3 70B", 8192, 2048, 128, 2, 1, "qkv", 15.898),
        ),
    ),
    (
        "Pax",
        "NVIDIA/JAX-Toolbox, rosetta/rosetta/projects/pax/README.md (2024)",
        CLUSTERS["a100"],
        (
            _Row("GPT 5B", 2048, 256, 256, 8, 1, "elementwise", 2.852),
            _Row("GPT 175B", 2048, 256, 256, 6, 1, "full", 75.15),
        ),
    ),
    (
        "Pax",
        "NVIDIA/JAX-Toolbox, rosetta/rosetta/projects/pax/README.md (2024)",
        CLUSTERS["h100"],
        (
            _Row("GPT 5B", 2048, 256, 256, 8, 1, "elementwise", 1.236),
            _Row("GPT 175B", 2048, 256, 256, 6, 1, "full", 30.12),
        ),
    ),
    (
        "fms-fsdp",
        "foundation-model-stack/fms-fsdp, README (May 2024)",
        CLUSTERS["a100"],
        (_Row("Llama 2 7B", 4096, 128, 8, 2, 1, "none", 1.8),),
    ),
    (
        "fms-fsdp",
        "foundation-model-stack/fms-fsdp, README (May 2024)",
        with_second_flash_attention(CLUSTERS["h100"]),
        (_Row("Llama 2 7B", 4096, 96, 8, 2, 1, "none", 0.853),),
    ),
    (
        "llm-foundry",
        "mosaicml/llm-foundry, scripts/train/benchmarking/README.md (October 2023)",
        with_triton_attention(CLUSTERS["h100"]),
        (
            _Row("MPT-1B", 2048, 8, 8, 14, 1, "none", 0.631),
            _Row("MPT-7B", 2048, 8, 8, 6, 1, "none", 1.155),
            _Row("MPT-7B", 32768, 8, 8, 2, 2, "full", 39.494),
            _Row("MPT-13B", 2048, 128, 128, 16, 1, "full", 6.45),
            _Row("MPT-30B", 2048, 8, 8, 3, 21, "full", 64.423),
        ),
    ),
    (
        "llm-foundry",
        "mosaicml/llm-foundry, scripts/train/benchmarking/README.md (January 2024)",
        with_second_flash_attention(CLUSTERS["h100"]),
        (
            _Row("MPT-7B", 2048, 128, 128, 6, 1, "none", 1.173),
            _Row("MPT-7B", 2048, 512, 512, 6, 1, "none", 1.271),
            _Row("MPT-70B", 2048, 128, 128, 8, 1, "full", 15.478),
            _Row("MPT-70B", 2048, 512, 512, 8, 1, "full", 16.268),
        ),
    ),
    (
        "llm-foundry",
        "mosaicml/llm-foundry, scripts/train/benchmarking/README.md (October 2023)",
        with_first_flash_attention(CLUSTERS["a100"]),
        (_Row("MPT-70B", 2048, 64, 64, 8, 4, "full", 159.637),),
    ),
    (
        "llm-foundry",
        "mosaicml/llm-foundry, scripts/train/benchmarking/README.md (October 2023)",
        with_first_flash_attention(CLUSTERS["a100_40gb"]),
        (_Row("MPT-30B", 2048, 128, 128, 6, 1, "full", 14.195),),
    ),
)


def _run(framework: str, source: str, cluster: ClusterConfig, row: _Row) -> PublishedRun:
    recompute, again, half = _POLICIES[row.policy]
    model = _MODELS[row.model]
    return PublishedRun(
        name=f"{framework} {row.model}, {row.length} positions, {row.devices} {cluster.name}, {row.policy}",
        family="fully_sharded",
        source=source,
        width=model.width,
        seconds=row.seconds,
        setting=Setting(
            graph=language_graph(model),
            costs=KernelsRecomputed(cluster, names=again, half=half),
            loads=(sequence_load(row.length),),
            microbatch=row.microbatch,
            microbatches=row.microbatches,
            tp=row.tp,
            dp=row.devices // row.tp,
            fsdp=row.shards,
            recompute=recompute,
        ),
    )


def runs() -> tuple[PublishedRun, ...]:
    """Sequences of the model's length, without segments; each row's policy says what is computed again."""
    return tuple(_run(*table, row) for *table, rows in _TABLES for row in rows)
