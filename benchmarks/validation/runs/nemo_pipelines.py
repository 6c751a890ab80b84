"""Dense models on H100s in NVIDIA's DGX Cloud benchmarking recipes (NeMo): tensor, context and pipeline ranks."""

import dataclasses
from typing import NamedTuple

from benchmarks.validation.runs.megatron import gpt
from benchmarks.validation.settings.frameworks import ReductionsOverlapped
from benchmarks.validation.settings.published import PublishedRun
from benchmarks.validation.settings.setting import Setting, language_graph, sequence_load
from configs.clusters import CLUSTERS
from configs.modules.backbone import BackboneConfig


def _llama_3(width: int, depth: int, heads: int, ffn: int) -> BackboneConfig:
    return BackboneConfig(width=width, depth=depth, heads=heads, kv_heads=8, ffn=ffn, vocabulary=128256)


def _nemotron_4(width: int, depth: int, heads: int, ffn: int) -> BackboneConfig:
    return BackboneConfig(
        width=width, depth=depth, heads=heads, kv_heads=8, ffn=ffn, gated=False, norm="layernorm", vocabulary=256000
    )


LLAMA_3_8B = _llama_3(4096, 32, 32, 14336)
LLAMA_3_70B = _llama_3(8192, 80, 64, 28672)
_LLAMA_3_405B = _llama_3(16384, 126, 128, 53248)
_NEMOTRON_15B, _NEMOTRON_340B = _nemotron_4(6144, 32, 48, 24576), _nemotron_4(18432, 96, 96, 73728)


class _Recipe(NamedTuple):
    """A model and how it is divided, on any number of devices; microbatches are of each replica."""

    model: BackboneConfig
    length: int
    microbatch: int
    microbatches: int
    tp: int = 1
    cp: int = 1
    pp: int = 1
    chunks: int = 1


_LLAMA_405B_RECIPE = _Recipe(_LLAMA_3_405B, 8192, 1, 64, tp=8, cp=2, pp=8, chunks=8)
_RECIPES = {
    "Llama 3.1 8B": _Recipe(LLAMA_3_8B, 8192, 1, 32, cp=2),
    "Llama 3.1 70B": _Recipe(LLAMA_3_70B, 8192, 1, 64, tp=4, cp=2, pp=4, chunks=5),
    "Llama 3.1 405B": _LLAMA_405B_RECIPE,
    "Llama 3.1 405B, 8 layers": _LLAMA_405B_RECIPE._replace(
        model=dataclasses.replace(_LLAMA_3_405B, depth=8), microbatches=32, pp=1, chunks=1
    ),
    "Llama 3.1 405B, 62 layers": _LLAMA_405B_RECIPE._replace(model=dataclasses.replace(_LLAMA_3_405B, depth=62), pp=4),
    "GPT-3 175B": _Recipe(gpt(12288, 96, 96), 2048, 1, 64, tp=4, pp=8, chunks=6),
    "Nemotron-4 15B": _Recipe(_NEMOTRON_15B, 4096, 2, 4, tp=2),
    "Nemotron-4 15B, tp 4": _Recipe(_NEMOTRON_15B, 4096, 4, 4, tp=4),
    "Nemotron-4 340B": _Recipe(_NEMOTRON_340B, 4096, 1, 16, tp=8, pp=8, chunks=12),
}

# (recipe, release, devices, seconds of a step)
_RUNS = (
    ("Llama 3.1 8B", "25.04", 8, 12.27),
    ("Llama 3.1 8B", "25.04", 128, 12.33),
    ("Llama 3.1 8B", "25.01", 8, 12.91),
    ("Llama 3.1 70B", "25.04", 64, 14.66),
    ("Llama 3.1 70B", "25.04", 512, 14.67),
    ("Llama 3.1 70B", "25.04", 2048, 14.66),
    ("Llama 3.1 405B, 8 layers", "25.04", 32, 5.4),
    ("Llama 3.1 405B, 62 layers", "25.04", 128, 19.62),
    ("Llama 3.1 405B", "25.04", 512, 19.78),
    ("GPT-3 175B", "25.04", 128, 8.309),
    ("GPT-3 175B", "25.04", 1024, 8.453),
    ("Nemotron-4 15B", "25.04", 16, 2.66),
    ("Nemotron-4 15B", "25.04", 256, 2.68),
    ("Nemotron-4 15B", "25.04", 2048, 2.78),
    ("Nemotron-4 15B, tp 4", "25.01", 64, 2.86),
    ("Nemotron-4 340B", "25.04", 256, 4.36),
    ("Nemotron-4 340B", "25.04", 1024, 4.41),
)


def runs() -> tuple[PublishedRun, ...]:
    """Whole steps: tensor collectives beside matmuls, cuDNN's fused attention, nothing recomputed."""
    published = []
    for name, release, devices, seconds in _RUNS:
        recipe = _RECIPES[name]
        setting = Setting(
            graph=language_graph(recipe.model),
            costs=ReductionsOverlapped(CLUSTERS["h100"]),
            loads=(sequence_load(recipe.length),),
            microbatch=recipe.microbatch,
            microbatches=recipe.microbatches,
            tp=recipe.tp,
            cp=recipe.cp,
            pp=recipe.pp,
            chunks=recipe.chunks,
            dp=devices // (recipe.tp * recipe.cp * recipe.pp),
            collectives="ring" if recipe.tp > 1 else "all_reduce",
        )
        published.append(
            PublishedRun(
                name=f"{name}, NeMo {release}, {devices} H100s",
                family="pipeline",
                source=f"NVIDIA/dgxc-benchmarking, release {release} (2025)",
                width=recipe.model.width,
                seconds=seconds,
                setting=setting,
            )
        )
    return tuple(published)
