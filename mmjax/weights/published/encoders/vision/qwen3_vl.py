"""Qwen3-VL's vision tower (arXiv 2511.21631), `Qwen3VLVisionModel` of transformers.

A learned position table beside rotary positions, and mergers of tapped layers (DeepStack), which a whole model has.
"""

from typing import Any

from configs.architectures import VisionConfig
from configs.modules.projectors import MLPProjectorConfig
from mmjax.weights.published.encoders.shared.qwen_towers import (
    DEFAULTS,
    NORM_EPSILON,
    QWEN3_MERGER_NAMES,
    tower_architecture,
    tower_rules,
)
from mmjax.weights.published.encoders.shared.vision_keys import FFN, HALF_PIXELS, square_table
from mmjax.weights.published.key_table import Fields, Key, Keys, Values
from mmjax.weights.published.rules import Rule, Rules
from mmjax.weights.published.table_architecture import with_defaults
from mmjax.weights.published.tensor_layouts import Reshaped

NAMES = {"mlp/up": "mlp.linear_fc1", "mlp/down": "mlp.linear_fc2"}
OWN_DEFAULTS = {
    **DEFAULTS,
    "depth": 27,
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "hidden_act": "gelu_pytorch_tanh",
    "patch_size": 16,
    "num_position_embeddings": 2304,
    "deepstack_visual_indexes": [8, 16, 24],
}
TAP_PROJECTOR = MLPProjectorConfig(norm=True, activation="gelu", hidden="positions", norm_epsilon=NORM_EPSILON)


def rules(config: VisionConfig) -> Rules:
    """Rules of the tower; a whole model has its projector."""
    table = Rule("pos_embed.weight", "embed/table/table", Reshaped((config.grid**2, config.width)))
    return {config.name: (table, *tower_rules(config, NAMES, QWEN3_MERGER_NAMES))}


def _read_taps(values: Values) -> dict[str, Any]:
    taps = tuple(values["deepstack_visual_indexes"])
    if list(taps) != sorted(taps):
        raise ValueError(f"deepstack_visual_indexes is {list(taps)}; only ascending ones can be computed")
    return {"deepstack_layers": taps, "deepstack_projector": TAP_PROJECTOR if taps else None}


KEYS = (
    Key("hidden_size", "width"),
    FFN,
    square_table("num_position_embeddings"),
    Keys(_read_taps, lambda config: {"deepstack_visual_indexes": list(config.deepstack_layers)}),
    HALF_PIXELS,
    Fields({"patch_bias": True, "positions": "learned", "interpolation": "bilinear_corners"}),
)
"""The tower's own keys; `out_hidden_size` is the backbone's width."""

PUBLISHED = (
    tower_architecture(
        "Qwen3VLVisionModel",
        ("qwen3_vl_vision", "qwen3_vl_moe_vision"),
        KEYS,
        QWEN3_MERGER_NAMES,
        prepare=with_defaults(OWN_DEFAULTS),
        rules=rules,
    ),
)
