"""Diffusion transformers: DiT-XL/2 on one A100."""

from benchmarks.validation.settings.frameworks import A100
from benchmarks.validation.settings.published import PublishedRun
from benchmarks.validation.settings.setting import Load, Setting, generator_graph
from configs.modules.diffusion_transformer import DiTConfig
from sharding.costs.analytic import AnalyticCostModel

_ONE_PICTURE: tuple[Load, ...] = ((0.0, 0.0, 1.0, 0.0),)
_DIT_XL = DiTConfig(
    image_size=32, channels=4, patch=2, width=1152, heads=16, ffn=4608, plain_layers=28, conditions=1,
    condition_width=1152,
)  # fmt: skip


def runs() -> tuple[PublishedRun, ...]:
    """fast-DiT with features computed before."""
    dit = PublishedRun(
        name="DiT-XL/2, 256 pixels, one A100",
        family="diffusion",
        source="chuanyangjin/fast-DiT, README: float16, gradient checkpointing, features computed before",
        width=1152,
        seconds=1 / 0.84,
        setting=Setting(
            graph=generator_graph(_DIT_XL),
            costs=AnalyticCostModel(A100),
            loads=_ONE_PICTURE,
            microbatch=128,
            recompute="full",
        ),
    )
    return (dit,)
