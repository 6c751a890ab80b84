"""Qwen's language models and vision towers, with the sizes of their config.json on huggingface.co."""

from configs.attention.attention_windows import AttentionWindows
from configs.attention.vision_rope import VisionRope
from configs.modules.backbone import BackboneConfig
from configs.modules.encoders import VisionConfig
from configs.modules.projectors import MLPProjectorConfig


def _qwen_2(width: int, depth: int, heads: int, kv_heads: int, ffn: int) -> BackboneConfig:
    return BackboneConfig(
        width=width,
        depth=depth,
        heads=heads,
        kv_heads=kv_heads,
        ffn=ffn,
        vocabulary=152064,
        biases=("query", "key", "value"),
    )


QWEN_2_7B = _qwen_2(3584, 28, 28, 4, 18944)
"""Qwen2-7B, Qwen2.5-7B, and the backbones of Qwen2-VL-7B and Qwen2.5-VL-7B."""
QWEN_2_32B = _qwen_2(5120, 64, 40, 8, 27648)
"""Qwen2.5-32B."""
QWEN_2_72B = _qwen_2(8192, 80, 64, 8, 29568)
"""Qwen2-72B, and the backbone of Qwen2-VL-72B."""
QWEN_3_8B = BackboneConfig(
    width=4096, depth=36, heads=32, kv_heads=8, ffn=12288, vocabulary=151936, qk_norm="head"
)  # fmt: skip
"""The backbone of Qwen3-VL-8B."""

_PROJECTOR = MLPProjectorConfig(activation="gelu", hidden="positions")
QWEN_2_VL_TOWER = VisionConfig(
    width=1280,
    depth=32,
    heads=16,
    ffn=5120,
    activation="gelu",
    projector=_PROJECTOR,
    patch=14,
    temporal_patch=2,
    patch_bias=False,
    positions="none",
    rope=VisionRope(),
)
QWEN_2_5_VL_TOWER = VisionConfig(
    width=1280,
    depth=32,
    heads=16,
    ffn=3420,
    norm="rmsnorm",
    activation="silu",
    gated=True,
    projector=_PROJECTOR,
    patch=14,
    temporal_patch=2,
    patch_bias=False,
    positions="none",
    rope=VisionRope(),
    windows=AttentionWindows(full_layers=(7, 15, 23, 31)),
)
QWEN_3_VL_TOWER = VisionConfig(
    width=1152,
    depth=27,
    heads=16,
    ffn=4304,
    projector=_PROJECTOR,
    patch=16,
    temporal_patch=2,
    positions="learned",
    grid=48,
    interpolation="bilinear_corners",
    rope=VisionRope(),
    deepstack_layers=(8, 16, 24),
    deepstack_projector=MLPProjectorConfig(norm=True, activation="gelu", hidden="positions", norm_epsilon=1e-6),
)
