"""Qwen2-VL's vision tower (arXiv 2409.12191), `Qwen2VisionTransformerPretrainedModel` of transformers."""

from collections.abc import Mapping
from typing import Any

from configs.architectures import VisionConfig
from mmjax.weights.published.encoders.shared.qwen_towers import (
    DEFAULTS,
    MERGER_NAMES,
    MLP_NAMES,
    merger_patterns,
    read_tower,
    require_tower_round_trip,
    tower_rules,
    with_defaults,
    write_tower,
)
from mmjax.weights.published.encoders.shared.vision_transformer import CLIP_PIXELS
from mmjax.weights.published.rules import PublishedArchitecture, Rules

OWN_DEFAULTS = {**DEFAULTS, "embed_dim": 1280, "mlp_ratio": 4, "hidden_act": "quick_gelu"}


def rules(config: VisionConfig) -> Rules:
    """Rules of the tower; a whole model has its projector."""
    return {config.name: tower_rules(config, MLP_NAMES, MERGER_NAMES)}


def read_config(values: Mapping[str, Any]) -> VisionConfig:
    """Reads transformers' Qwen2VLVisionConfig; its `hidden_size` is the backbone's width."""
    values = with_defaults(values, OWN_DEFAULTS)
    return read_tower(values, CLIP_PIXELS, width=values["embed_dim"], ffn=values["embed_dim"] * values["mlp_ratio"])


def write_config(config: VisionConfig) -> dict[str, Any]:
    """Writes transformers' Qwen2VLVisionConfig, without the backbone's width (`hidden_size`).

    Raises:
        ValueError: The tower cannot compute the configuration.
    """
    values = {"embed_dim": config.width, "mlp_ratio": config.ffn // config.width, **write_tower(config)}
    require_tower_round_trip(config, read_config(values))
    return values


PUBLISHED = (
    PublishedArchitecture(
        name="Qwen2VisionTransformerPretrainedModel",
        model_types=("qwen2_vl_vision",),
        config_type=VisionConfig,
        read_config=read_config,
        write_config=write_config,
        rules=rules,
        ignored=lambda config: merger_patterns(MERGER_NAMES),
    ),
)
