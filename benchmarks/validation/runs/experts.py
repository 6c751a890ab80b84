"""Mixtures of experts on H100s: Grok-1, Mixtral 8x7B and Qwen3-30B-A3B.

Runs whose tensor ranks do not divide the experts have no counterpart here, and are left out.
"""

import dataclasses
from typing import NamedTuple

from benchmarks.validation.settings.frameworks import ReductionsOverlapped
from benchmarks.validation.settings.published import PublishedRun
from benchmarks.validation.settings.setting import Setting, language_graph, sequence_load
from configs.clusters import CLUSTERS
from configs.modules.backbone import BackboneConfig
from configs.modules.experts import ExpertsConfig
from sharding.costs.analytic import AnalyticCostModel
from sharding.specs.layers.layer import RecomputePolicy

_DGXC = "NVIDIA/dgxc-benchmarking, grok1, release 25.04 (2025): capacity factor 1"
_NEMO = "NVIDIA/NeMo-Framework-Launcher, examples/README.md (June 2024): capacity factor 1; ep and chunks by its yaml"
_AUTOMODEL = "NVIDIA-NeMo/Automodel, docs/performance-summary.mdx (2025): balanced routing"

_GROK = BackboneConfig(
    width=6144,
    depth=64,
    heads=48,
    kv_heads=8,
    ffn=32768,
    vocabulary=128256,
    experts=ExpertsConfig(count=8, top_k=2, ffn=32768),
)
_MIXTRAL_8X7B = BackboneConfig(
    width=4096, depth=32, heads=32, kv_heads=8, ffn=14336, vocabulary=32000,
    experts=ExpertsConfig(count=8, top_k=2, ffn=14336),
)  # fmt: skip
QWEN3_30B = BackboneConfig(
    width=2048, depth=48, heads=32, kv_heads=4, attention_width=4096, ffn=768, qk_norm="head", vocabulary=151936,
    experts=ExpertsConfig(count=128, top_k=8, ffn=768),
)  # fmt: skip

_BALANCED = CLUSTERS["h100"].without(("imbalance",))


class _Row(NamedTuple):
    """A run and its seconds of a step; tensor ranks divide the experts too."""

    name: str
    source: str
    model: BackboneConfig
    length: int
    devices: int
    tp: int
    cp: int
    pp: int
    chunks: int
    ep: int
    fsdp: int
    microbatch: int
    microbatches: int
    recompute: RecomputePolicy
    seconds: float


def _grok(layers: int) -> BackboneConfig:
    return dataclasses.replace(_GROK, depth=layers)


_ROWS = (
    _Row("Grok-1, 2 layers", _DGXC, _grok(2), 4096, 8, 4, 1, 1, 1, 2, 1, 1, 512, "none", 24.00),
    _Row("Grok-1, 4 layers", _DGXC, _grok(4), 4096, 32, 4, 1, 1, 1, 8, 1, 1, 128, "none", 10.70),
    _Row("Grok-1, 8 layers", _DGXC, _grok(8), 8192, 64, 4, 2, 1, 1, 8, 1, 1, 128, "none", 21.42),
    _Row("Grok-1, 16 layers", _DGXC, _grok(16), 8192, 128, 4, 2, 2, 8, 8, 1, 1, 128, "none", 20.73),
    _Row("Grok-1", _DGXC, _GROK, 8192, 512, 4, 2, 8, 8, 8, 1, 1, 128, "none", 21.01),
    _Row("Grok-1", _DGXC, _GROK, 8192, 2048, 4, 2, 8, 8, 8, 1, 1, 128, "none", 21.29),
    _Row("Mixtral 8x7B", _NEMO, _MIXTRAL_8X7B, 4096, 64, 1, 1, 4, 8, 8, 1, 1, 16, "none", 3.68),
    _Row("Qwen3-30B-A3B", _AUTOMODEL, QWEN3_30B, 4096, 8, 1, 1, 1, 1, 8, 8, 4, 16, "full", 22.14),
)


def runs() -> tuple[PublishedRun, ...]:
    """Steps in which every expert gets its share of the tokens."""
    return tuple(
        PublishedRun(
            name=f"{row.name}, {row.devices} H100s",
            family="experts",
            source=row.source,
            width=row.model.width,
            seconds=row.seconds,
            setting=Setting(
                graph=language_graph(row.model),
                costs=AnalyticCostModel(_BALANCED) if row.fsdp > 1 else ReductionsOverlapped(_BALANCED),
                loads=(sequence_load(row.length),),
                microbatch=row.microbatch,
                microbatches=row.microbatches,
                tp=row.tp,
                cp=row.cp,
                pp=row.pp,
                chunks=row.chunks,
                dp=row.devices // (row.tp * row.cp * row.pp),
                ep=row.ep,
                fsdp=row.fsdp,
                recompute=row.recompute,
                collectives="ring",
            ),
        )
        for row in _ROWS
    )
