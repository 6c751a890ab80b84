"""Vision transformers of NVIDIA's JAX-Toolbox (Rosetta, T5X) on A100s and H100s: attention is not fused."""

import functools

from benchmarks.validation.settings.frameworks import replace_kernels, unfused_attention
from benchmarks.validation.settings.published import PublishedRun
from benchmarks.validation.settings.setting import Setting, encoder_graph, sequence_load, with_kernels
from configs.clusters import CLUSTERS
from configs.modules.encoders import VisionConfig
from sharding.costs.analytic import AnalyticCostModel
from sharding.specs.layers.layer import LayerSpec

_SOURCE = "NVIDIA/JAX-Toolbox, rosetta/rosetta/projects/vit/README.md (2023)"


def _vit(width: int, depth: int, heads: int, ffn: int, patch: int) -> VisionConfig:
    return VisionConfig(
        width=width,
        depth=depth,
        heads=heads,
        ffn=ffn,
        patch=patch,
        merge=1,
        class_token=True,
        positions="learned",
        grid=224 // patch,
    )


_B_16, _G_14 = _vit(768, 12, 12, 3072, 16), _vit(1664, 48, 16, 8192, 14)

# (name, model, cluster, positions, devices, pictures of a microbatch, microbatches, tensor ranks, seconds of a step)
_RUNS = (
    ("ViT-B/16, 8 A100s", _B_16, "a100", 197, 8, 512, 1, 1, 4096 / 7200.38),
    ("ViT-B/16, 8 H100s", _B_16, "h100", 197, 8, 512, 1, 1, 4096 / 11669.52),
    ("ViT-B/16, 384 pixels, 8 A100s", _B_16, "a100", 577, 8, 64, 1, 1, 512 / 1841.43),
    ("ViT-G/14, 8 A100s", _G_14, "a100", 257, 8, 16, 1, 1, 16 / 34.63),
    ("ViT-G/14, 32 A100s", _G_14, "a100", 257, 32, 16, 1, 1, 16 / 30.36),
    ("ViT-G/14, 64 A100s", _G_14, "a100", 257, 64, 16, 1, 1, 16 / 27.92),
    ("ViT-G/14, 32 A100s, 8 microbatches", _G_14, "a100", 257, 32, 16, 8, 1, 4096 / 1281),
    ("ViT-G/14, 32 A100s, tp 4", _G_14, "a100", 257, 32, 64, 8, 4, 4096 / 795),
    ("ViT-G/14, 32 A100s, tp 8", _G_14, "a100", 257, 32, 128, 8, 8, 4096 / 553),
)


def _unfused(layer: LayerSpec, model: VisionConfig, length: int, pictures: int) -> LayerSpec:
    kernels = unfused_attention(model.width, model.heads, length, pictures, dropout=False)
    return replace_kernels(layer, {"attention": kernels})


def runs() -> tuple[PublishedRun, ...]:
    """Steps of ViT-B/16 and ViT-G/14 in bfloat16, data-parallel, two with tensor ranks."""
    published = []
    for name, model, cluster, length, devices, pictures, microbatches, tp, seconds in _RUNS:
        adapt = functools.partial(_unfused, model=model, length=length, pictures=pictures)
        setting = Setting(
            graph=with_kernels(encoder_graph(model), adapt),
            costs=AnalyticCostModel(CLUSTERS[cluster]),
            loads=(sequence_load(length),),
            microbatch=pictures,
            microbatches=microbatches,
            tp=tp,
            dp=devices // tp,
            collectives="all_reduce",
        )
        published.append(
            PublishedRun(
                name=name, family="encoder", source=_SOURCE, width=model.width, seconds=seconds, setting=setting
            )
        )
    return tuple(published)
