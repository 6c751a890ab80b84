"""Vision-language models: published hours of LLaVA-1.5 and InternVL-Chat-V1.2."""

from benchmarks.validation.settings.published import PublishedRun
from benchmarks.validation.settings.setting import Setting, sequence_load
from configs.architectures import ModelConfig
from configs.clusters import CLUSTERS
from configs.modules.backbone import BackboneConfig
from configs.modules.encoders import VisionConfig
from configs.modules.projectors import MLPProjectorConfig
from sharding.costs.analytic import AnalyticCostModel
from sharding.specs.modules import ModuleGraph, module_graph

_LLAVA = "haotian-liu/LLaVA, README and scripts/v1_5 (2024)"
_INTERNVL = "OpenGVLab/InternVL, documentation of InternVL-Chat-V1.2 (February 2024)"

_CLIP_L_336 = VisionConfig(
    width=1024, depth=24, heads=16, ffn=4096, patch=14, merge=1, class_token=True, positions="learned", grid=24,
    projector=MLPProjectorConfig(activation="gelu"),
)  # fmt: skip
_VICUNA = {
    "7B": BackboneConfig(width=4096, depth=32, heads=32, kv_heads=32, ffn=11008, vocabulary=32000),
    "13B": BackboneConfig(width=5120, depth=40, heads=40, kv_heads=40, ffn=13824, vocabulary=32000),
}


def _graph(vision: VisionConfig, backbone: BackboneConfig) -> ModuleGraph:
    return module_graph(ModelConfig((vision,), backbone, (), "bfloat16"))


# (model, stage, hours, steps, samples of each device, tokens of a sample, cluster, weights divided over, parts)
_LLAVA_RUNS = (
    ("13B", "pretraining", 5.5, 2180, 32, 576 + 50, "a100", 1, ("vision_projector",)),
    ("7B", "pretraining", 3.5, 2180, 32, 576 + 50, "a100", 1, ("vision_projector",)),
    ("13B", "instruction tuning", 20.0, 5198, 16, 576 + 350, "a100", 8, ("vision_projector", "backbone")),
    ("7B", "instruction tuning", 10.0, 5198, 16, 576 + 350, "a100_40gb", 8, ("vision_projector", "backbone")),
)


def llava_runs() -> tuple[PublishedRun, ...]:
    """Eight devices of one node, all recomputed; the mean lengths of samples are assumed, and the hours are rounded."""
    return tuple(
        PublishedRun(
            name=f"LLaVA-1.5 {size}, {stage}",
            family="vision_language",
            source=_LLAVA,
            width=_VICUNA[size].width,
            seconds=hours * 3600 / steps,
            setting=Setting(
                graph=_graph(_CLIP_L_336, _VICUNA[size]),
                costs=AnalyticCostModel(CLUSTERS[cluster]),
                loads=(sequence_load(577), sequence_load(tokens)),
                microbatch=samples,
                dp=8,
                fsdp=shards,
                recompute="full",
                trains=parts,
            ),
        )
        for size, stage, hours, steps, samples, tokens, cluster, shards, parts in _LLAVA_RUNS
    )


_INTERNVIT_6B = VisionConfig(
    width=3200, depth=45, heads=25, ffn=12800, norm="rmsnorm", activation="gelu", biases=("output", "mlp"),
    qk_norm="width", layer_scale=0.1, final_norm=False, patch=14, merge=2, class_token=True, positions="learned",
    grid=32, projector=MLPProjectorConfig(norm=True, activation="gelu"),
)  # fmt: skip
_YI_34B = BackboneConfig(width=7168, depth=60, heads=56, kv_heads=8, ffn=20480, vocabulary=64000)
_INTERNVL_STEPS = 1.2e6 / 512


def internvl_runs() -> tuple[PublishedRun, ...]:
    """Instruction tuning of all parts, fully sharded, all recomputed; 1.5 days on 32 devices, 18 hours on 64.

    Pictures have 448 x 448 pixels, which become 256 tokens. As for LLaVA-1.5, 350 tokens of text are assumed, and the
    hours are rounded.
    """
    return tuple(
        PublishedRun(
            name=f"InternVL-Chat-V1.2, {devices} A100s",
            family="vision_language",
            source=_INTERNVL,
            width=_YI_34B.width,
            seconds=hours * 3600 / _INTERNVL_STEPS,
            setting=Setting(
                graph=_graph(_INTERNVIT_6B, _YI_34B),
                costs=AnalyticCostModel(CLUSTERS["a100"]),
                loads=(sequence_load(1025), sequence_load(256 + 350)),
                microbatch=8,
                microbatches=512 // (8 * devices),
                dp=devices,
                fsdp=devices,
                recompute="full",
            ),
        )
        for devices, hours in ((32, 36.0), (64, 18.0))
    )
