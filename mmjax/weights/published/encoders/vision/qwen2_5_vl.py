"""Qwen2.5-VL's vision tower (arXiv 2502.13923), `Qwen2_5_VisionTransformerPretrainedModel` of transformers.

Qwen2.5-Omni's (arXiv 2503.20215), `Qwen2_5OmniVisionEncoder`, computes the same.

Patches attend within windows in most layers. transformers reorders them by window for that, and the merged tokens back;
here they keep their order.
"""

from collections.abc import Callable, Mapping
from typing import Any

from configs.architectures import VisionConfig
from configs.attention_windows import AttentionWindows
from mmjax.weights.published.encoders.shared.qwen_towers import (
    ATTENTION_NAMES,
    DEFAULTS,
    GATED_MLP_NAMES,
    MERGER_NAMES,
    merger_patterns,
    read_tower,
    require_tower_round_trip,
    tower_rules,
    with_defaults,
    write_tower,
)
from mmjax.weights.published.encoders.shared.vision_transformer import CLIP_PIXELS
from mmjax.weights.published.rules import PublishedArchitecture, Rules

OWN_DEFAULTS = {
    **DEFAULTS,
    "hidden_size": 3584,
    "intermediate_size": 3420,
    "hidden_act": "silu",
    "window_size": 112,
    "fullatt_block_indexes": [7, 15, 23, 31],
}


def rules(config: VisionConfig) -> Rules:
    """Rules of the tower; a whole model has its projector."""
    return {config.name: tower_rules(config, GATED_MLP_NAMES, MERGER_NAMES)}


def rules_of_omni(config: VisionConfig) -> Rules:
    """Rules of Qwen2.5-Omni's tower, which is the same but for its tensors of queries, keys and values."""
    return {config.name: tower_rules(config, {**ATTENTION_NAMES, **GATED_MLP_NAMES}, MERGER_NAMES)}


def read_config(values: Mapping[str, Any]) -> VisionConfig:
    """Reads transformers' Qwen2_5_VLVisionConfig, or Qwen2_5OmniVisionEncoderConfig.

    Raises:
        ValueError: A key has a value that cannot be computed.
    """
    values = with_defaults(values, OWN_DEFAULTS)
    return read_tower(
        values,
        CLIP_PIXELS,
        width=values["hidden_size"],
        ffn=values["intermediate_size"],
        norm="rmsnorm",
        gated=True,
        windows=_read_windows(values),
    )


def _read_windows(values: Mapping[str, Any]) -> AttentionWindows | None:
    """Reads the windows, which are whole cells of merged patches; None where no layer has any."""
    full = sorted({layer for layer in values["fullatt_block_indexes"] if layer < values["depth"]})
    if len(full) == values["depth"]:
        return None
    cells = values["window_size"] // values["spatial_merge_size"] // values["patch_size"]
    if not cells:
        raise ValueError(f"window_size is {values['window_size']}, less than one cell of merged patches")
    return AttentionWindows(cells * values["spatial_merge_size"], tuple(full))


def write_config(config: VisionConfig) -> dict[str, Any]:
    """Writes transformers' Qwen2_5_VLVisionConfig, without the backbone's width (`out_hidden_size`).

    Raises:
        ValueError: The tower cannot compute the configuration.
    """
    side = config.windows.side * config.patch if config.windows else OWN_DEFAULTS["window_size"]
    values = {
        "hidden_size": config.width,
        "intermediate_size": config.ffn,
        "window_size": side,
        "fullatt_block_indexes": list(config.windows.full_layers if config.windows else range(config.depth)),
        **write_tower(config),
    }
    require_tower_round_trip(config, read_config(values))
    return values


def _published(name: str, model_type: str, rules: Callable[[VisionConfig], Rules]) -> PublishedArchitecture:
    return PublishedArchitecture(
        name=name,
        model_types=(model_type,),
        config_type=VisionConfig,
        read_config=read_config,
        write_config=write_config,
        rules=rules,
        ignored=lambda config: merger_patterns(MERGER_NAMES),
    )


PUBLISHED = (
    _published("Qwen2_5_VisionTransformerPretrainedModel", "qwen2_5_vl_vision", rules),
    _published("Qwen2_5OmniVisionEncoder", "qwen2_5_omni_vision_encoder", rules_of_omni),
)
