"""DINOv3's vision transformers (arXiv 2508.10104), `DINOv3ViTModel` of transformers.

Patches have no embedded positions: queries and keys rotate by the patch's coordinates in its image, from -1 to 1.
"""

from typing import Any

from configs.architectures import VisionConfig
from configs.vision_rope import VisionRope
from mmjax.weights.published.encoders.shared.vision_transformer import (
    IMAGENET_PIXELS,
    LAYER_SCALE,
    VIT_BASE_DEFAULTS,
    block_rules,
    class_token_rule,
    encoder_architecture,
    patch_embedding_rules,
    register_rules,
    unused_block_patterns,
)
from mmjax.weights.published.key_table import Fields, Key, Keys, Values
from mmjax.weights.published.rules import Rules, norm_rules
from mmjax.weights.published.table_architecture import with_defaults

BLOCK = "layer.{layer}"
NAMES = {
    "attention_norm": "norm1",
    "attention/query": "attention.q_proj",
    "attention/key": "attention.k_proj",
    "attention/value": "attention.v_proj",
    "attention/output": "attention.o_proj",
    "attention_scale": "layer_scale1.lambda1",
    "mlp_norm": "norm2",
    "mlp/up": "mlp.up_proj",
    "mlp/down": "mlp.down_proj",
    "mlp_scale": "layer_scale2.lambda1",
}
GATE = {"mlp/gate": "mlp.gate_proj"}
"""Names in a block of the checkpoint, by the path in a block here."""

DEFAULTS = {
    **VIT_BASE_DEFAULTS,
    "hidden_size": 384,
    "num_attention_heads": 6,
    "intermediate_size": 1536,
    "layer_norm_eps": 1e-5,
    "hidden_act": "gelu",
    "layerscale_value": 1.0,
    "num_register_tokens": 0,
    "rope_theta": 100.0,
    "use_gated_mlp": False,
    "query_bias": True,
    "key_bias": False,
    "value_bias": True,
    "proj_bias": True,
    "mlp_bias": True,
}
"""Values that transformers assumes where a file leaves them out."""

BIAS_KEYS = {
    "query": "query_bias",
    "key": "key_bias",
    "value": "value_bias",
    "output": "proj_bias",
    "mlp": "mlp_bias",
}
"""Keys of config.json by the name of a bias in `TransformerConfig.biases`."""


def rules(config: VisionConfig) -> Rules:
    """Rules of the encoder."""
    encoder = (
        *patch_embedding_rules("embeddings.patch_embeddings", config),
        class_token_rule("embeddings.cls_token", config, leading=(1, 1)),
        *register_rules("embeddings.register_tokens", config),
        *block_rules(BLOCK, {**NAMES, **(GATE if config.gated else {})}, config),
        *(norm_rules("norm", "norm/norm", bias=True) if config.final_norm else ()),
    )
    return {config.name: encoder}


def _read_rope(values: Values) -> dict[str, Any]:
    return {"rope": VisionRope(float(values["rope_theta"]), coordinates="centred")}


def _write_rope(config: VisionConfig) -> dict[str, Any]:
    return {"rope_theta": config.rope.base if config.rope else DEFAULTS["rope_theta"]}


KEYS = (
    Keys(
        lambda values: {"biases": tuple(name for name, key in BIAS_KEYS.items() if values[key])},
        lambda config: {key: name in config.biases for name, key in BIAS_KEYS.items()},
    ),
    LAYER_SCALE,
    Key("num_register_tokens", "registers"),
    Keys(_read_rope, _write_rope),
    Key("use_gated_mlp", "gated"),
    Fields({"class_token": True, "positions": "none"}),
)


def ignored(config: VisionConfig) -> tuple[str, ...]:
    """The mask token of pretraining, registers where there are none, and unused blocks."""
    final_norm = () if config.final_norm else ("norm.*",)
    tokens = ("embeddings.mask_token", "embeddings.register_tokens")
    return (*tokens, *final_norm, *unused_block_patterns(BLOCK, config))


PUBLISHED = (
    encoder_architecture(
        "DINOv3ViTModel",
        ("dinov3_vit",),
        IMAGENET_PIXELS,
        KEYS,
        prepare=with_defaults(DEFAULTS),
        rules=rules,
        ignored=ignored,
        aliases=(("model.layer.", "layer."),),
    ),
)
