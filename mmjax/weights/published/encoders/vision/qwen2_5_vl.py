"""Qwen2.5-VL's vision tower (arXiv 2502.13923), `Qwen2_5_VisionTransformerPretrainedModel` of transformers.

Qwen2.5-Omni's (arXiv 2503.20215), `Qwen2_5OmniVisionEncoder`, computes the same.

Patches attend within windows in most layers. transformers reorders them by window for that, and the merged tokens back;
here they keep their order.
"""

import functools
from typing import Any

from configs.architectures import VisionConfig
from configs.attention.attention_windows import AttentionWindows
from mmjax.weights.published.encoders.shared.qwen_towers import (
    DEFAULTS,
    MERGER_NAMES,
    tower_architecture,
    tower_rules,
)
from mmjax.weights.published.encoders.shared.vision_keys import CLIP_PIXELS, FFN
from mmjax.weights.published.key_table import Fields, Key, Keys, Values
from mmjax.weights.published.rules import Rules
from mmjax.weights.published.table_architecture import with_defaults

NAMES = {"mlp/gate": "mlp.gate_proj", "mlp/up": "mlp.up_proj", "mlp/down": "mlp.down_proj"}
OMNI_NAMES = {**NAMES, "attention/query": "attn.q", "attention/key": "attn.k", "attention/value": "attn.v"}
"""Names in a block; in Qwen2.5-Omni, queries, keys and values are no single tensor."""

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
    return {config.name: tower_rules(config, NAMES, MERGER_NAMES)}


def rules_of_omni(config: VisionConfig) -> Rules:
    """Rules of Qwen2.5-Omni's tower, which is the same but for its tensors of queries, keys and values."""
    return {config.name: tower_rules(config, OMNI_NAMES, MERGER_NAMES)}


def _read_windows(values: Values) -> dict[str, Any]:
    """Reads the windows, which are whole cells of merged patches; None where no layer has any."""
    full = sorted({layer for layer in values["fullatt_block_indexes"] if layer < values["depth"]})
    if len(full) == values["depth"]:
        return {"windows": None}
    cells = values["window_size"] // values["spatial_merge_size"] // values["patch_size"]
    if not cells:
        raise ValueError(f"window_size is {values['window_size']}, less than one cell of merged patches")
    return {"windows": AttentionWindows(cells * values["spatial_merge_size"], tuple(full))}


def _write_windows(config: VisionConfig) -> dict[str, Any]:
    side = config.windows.side * config.patch if config.windows else OWN_DEFAULTS["window_size"]
    full = config.windows.full_layers if config.windows else range(config.depth)
    return {"window_size": side, "fullatt_block_indexes": list(full)}


KEYS = (
    Key("hidden_size", "width"),
    FFN,
    Keys(_read_windows, _write_windows),
    CLIP_PIXELS,
    Fields({"norm": "rmsnorm", "gated": True}),
)
"""The tower's own keys; `out_hidden_size` is the backbone's width."""

_tower = functools.partial(tower_architecture, keys=KEYS, merger=MERGER_NAMES, prepare=with_defaults(OWN_DEFAULTS))
PUBLISHED = (
    _tower("Qwen2_5_VisionTransformerPretrainedModel", ("qwen2_5_vl_vision",), rules=rules),
    _tower("Qwen2_5OmniVisionEncoder", ("qwen2_5_omni_vision_encoder",), rules=rules_of_omni),
)
