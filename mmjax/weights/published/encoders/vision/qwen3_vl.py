"""Qwen3-VL's vision tower (arXiv 2511.21631), `Qwen3VLVisionModel` of transformers.

A learned position table beside rotary positions, and mergers of tapped layers (DeepStack), which a whole model has.
"""

import math
from collections.abc import Mapping
from typing import Any

from configs.architectures import VisionConfig
from configs.projectors import MLPProjectorConfig
from mmjax.weights.published.encoders.shared.qwen_towers import (
    DEFAULTS,
    NORM_EPSILON,
    PROJECTOR,
    QWEN3_MERGER_NAMES,
    QWEN3_MLP_NAMES,
    merger_patterns,
    read_tower,
    require_tower_round_trip,
    tower_rules,
    with_defaults,
    write_tower,
)
from mmjax.weights.published.encoders.shared.vision_transformer import HALF_PIXELS
from mmjax.weights.published.rules import PublishedArchitecture, Rule, Rules
from mmjax.weights.published.tensor_layouts import Reshaped

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
    return {config.name: (table, *tower_rules(config, QWEN3_MLP_NAMES, QWEN3_MERGER_NAMES))}


def read_config(values: Mapping[str, Any]) -> VisionConfig:
    """Reads transformers' Qwen3VLVisionConfig.

    Raises:
        ValueError: A key has a value that cannot be computed.
    """
    values = with_defaults(values, OWN_DEFAULTS)
    grid = math.isqrt(values["num_position_embeddings"])
    if grid**2 != values["num_position_embeddings"]:
        raise ValueError(f"num_position_embeddings is {values['num_position_embeddings']}, which is no square table")
    taps = tuple(values["deepstack_visual_indexes"])
    if list(taps) != sorted(taps):
        raise ValueError(f"deepstack_visual_indexes is {list(taps)}; only ascending ones can be computed")
    return read_tower(
        values,
        HALF_PIXELS,
        width=values["hidden_size"],
        ffn=values["intermediate_size"],
        patch_bias=True,
        positions="learned",
        grid=grid,
        interpolation="bilinear_corners",
        projector=PROJECTOR,
        deepstack_layers=taps,
        deepstack_projector=TAP_PROJECTOR if taps else None,
    )


def write_config(config: VisionConfig) -> dict[str, Any]:
    """Writes transformers' Qwen3VLVisionConfig, without the backbone's width (`out_hidden_size`).

    Raises:
        ValueError: The tower cannot compute the configuration.
    """
    values = {
        "hidden_size": config.width,
        "intermediate_size": config.ffn,
        "num_position_embeddings": config.grid**2,
        "deepstack_visual_indexes": list(config.deepstack_layers),
        **write_tower(config),
    }
    require_tower_round_trip(config, read_config(values))
    return values


PUBLISHED = (
    PublishedArchitecture(
        name="Qwen3VLVisionModel",
        model_types=("qwen3_vl_vision", "qwen3_vl_moe_vision"),
        config_type=VisionConfig,
        read_config=read_config,
        write_config=write_config,
        rules=rules,
        ignored=lambda config: merger_patterns(QWEN3_MERGER_NAMES),
    ),
)
