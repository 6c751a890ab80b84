"""Qwen2-VL's vision tower (arXiv 2409.12191), `Qwen2VisionTransformerPretrainedModel` of transformers."""

from configs.architectures import VisionConfig
from mmjax.weights.published.encoders.shared.qwen_towers import (
    DEFAULTS,
    MERGER_NAMES,
    tower_architecture,
    tower_rules,
)
from mmjax.weights.published.encoders.shared.vision_keys import CLIP_PIXELS
from mmjax.weights.published.encoders.shared.vision_rules import MLP_NAMES
from mmjax.weights.published.key_table import Key, Keys
from mmjax.weights.published.rules import Rules
from mmjax.weights.published.table_architecture import with_defaults

OWN_DEFAULTS = {**DEFAULTS, "embed_dim": 1280, "mlp_ratio": 4, "hidden_act": "quick_gelu"}

KEYS = (
    Key("embed_dim", "width"),
    Keys(
        lambda values: {"ffn": values["embed_dim"] * values["mlp_ratio"]},
        lambda config: {"mlp_ratio": config.ffn // config.width},
    ),
    CLIP_PIXELS,
)
"""The tower's own keys; `hidden_size` is the backbone's width."""


def rules(config: VisionConfig) -> Rules:
    """Rules of the tower; a whole model has its projector."""
    return {config.name: tower_rules(config, MLP_NAMES, MERGER_NAMES)}


PUBLISHED = (
    tower_architecture(
        "Qwen2VisionTransformerPretrainedModel",
        ("qwen2_vl_vision",),
        KEYS,
        MERGER_NAMES,
        prepare=with_defaults(OWN_DEFAULTS),
        rules=rules,
    ),
)
