"""Pixtral's vision tower (arXiv 2410.07073), `PixtralVisionModel` of transformers, for images of any size."""

from typing import Any

from configs.architectures import VisionConfig
from mmjax.weights.published.encoders.shared.vision_keys import (
    ACTIVATION,
    CLIP_PIXELS,
    FFN,
    SIZES,
    patches,
    rotary_positions,
)
from mmjax.weights.published.encoders.shared.vision_rules import (
    ATTENTION_NAMES,
    block_rules,
    patch_embedding_rules,
    unused_patterns,
)
from mmjax.weights.published.encoders.shared.vision_transformer import VIT_BASE_DEFAULTS, encoder_architecture
from mmjax.weights.published.key_table import Fields, Keys, Values
from mmjax.weights.published.rules import Rules, norm_rules
from mmjax.weights.published.table_architecture import with_defaults

BLOCK = "transformer.layers.{layer}"
NAMES = {
    "attention_norm": "attention_norm",
    **ATTENTION_NAMES,
    "mlp_norm": "ffn_norm",
    "mlp/gate": "feed_forward.gate_proj",
    "mlp/up": "feed_forward.up_proj",
    "mlp/down": "feed_forward.down_proj",
}
"""Names in a block of the checkpoint, by the path in a block here."""

DEFAULTS = {
    **VIT_BASE_DEFAULTS,
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "image_size": 1024,
    "hidden_act": "gelu",
}
"""Values that transformers assumes where a file leaves them out."""


def rules(config: VisionConfig) -> Rules:
    """Rules of the encoder."""
    encoder = (
        *patch_embedding_rules("patch_conv", config),
        *norm_rules("ln_pre", "embed/norm", bias=False),
        *block_rules(BLOCK, NAMES, config),
    )
    return {config.name: encoder}


def _read_head_width(values: Values) -> dict[str, Any]:
    width = values["hidden_size"] // values["num_attention_heads"]
    if values.get("head_dim", width) != width:
        raise ValueError(f"head_dim is {values['head_dim']}; only {width}, hidden_size by heads, can be computed")
    return {}


KEYS = (
    *SIZES,
    FFN,
    ACTIVATION,
    patches(),
    CLIP_PIXELS,
    Keys(_read_head_width, lambda config: {"head_dim": config.head_width}),
    rotary_positions("axial", "default", frequencies="alternate"),
    Fields(
        {
            "norm": "rmsnorm",
            "norm_epsilon": 1e-5,
            "gated": True,
            "biases": (),
            "patch_bias": False,
            "positions": "none",
            "input_norm": True,
            "final_norm": False,
        }
    ),
)


def ignored(config: VisionConfig) -> tuple[str, ...]:
    """Unused blocks."""
    return unused_patterns(BLOCK, config)


PUBLISHED = (
    encoder_architecture(
        "PixtralVisionModel", ("pixtral",), KEYS, prepare=with_defaults(DEFAULTS), rules=rules, ignored=ignored
    ),
)
