"""DINOv3's vision transformers (arXiv 2508.10104), `DINOv3ViTModel` of transformers.

Patches have no embedded positions: queries and keys rotate by the patch's coordinates in its image, from -1 to 1.
"""

from configs.architectures import VisionConfig
from configs.attention.vision_rope import VisionRope
from mmjax.weights.published.encoders.shared.vision_keys import ENCODER_KEYS, IMAGENET_PIXELS, layer_scale
from mmjax.weights.published.encoders.shared.vision_rules import (
    ATTENTION_NAMES,
    block_rules,
    class_token_rule,
    final_norm_rules,
    patch_embedding_rules,
    register_rules,
    unused_patterns,
)
from mmjax.weights.published.encoders.shared.vision_transformer import VIT_BASE_DEFAULTS, encoder_architecture
from mmjax.weights.published.key_table import Fields, Key, Keys
from mmjax.weights.published.rules import Rules
from mmjax.weights.published.table_architecture import with_defaults

BLOCK = "layer.{layer}"
NAMES = {
    "attention_norm": "norm1",
    **ATTENTION_NAMES,
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
        *final_norm_rules("norm", config),
    )
    return {config.name: encoder}


KEYS = (
    *ENCODER_KEYS,
    IMAGENET_PIXELS,
    Keys(
        lambda values: {"biases": tuple(name for name, key in BIAS_KEYS.items() if values[key])},
        lambda config: {key: name in config.biases for name, key in BIAS_KEYS.items()},
    ),
    layer_scale("layerscale_value"),
    Key("num_register_tokens", "registers"),
    Key(
        "rope_theta",
        "rope",
        to_field=lambda base: VisionRope(float(base), coordinates="centred"),
        to_value=lambda rope: rope.base if rope else DEFAULTS["rope_theta"],
    ),
    Key("use_gated_mlp", "gated"),
    Fields({"class_token": True, "positions": "none"}),
)


def ignored(config: VisionConfig) -> tuple[str, ...]:
    """The mask token of pretraining, registers where there are none, and unused blocks."""
    return ("embeddings.mask_token", "embeddings.register_tokens", *unused_patterns(BLOCK, config, "norm"))


PUBLISHED = (
    encoder_architecture(
        "DINOv3ViTModel",
        ("dinov3_vit",),
        KEYS,
        prepare=with_defaults(DEFAULTS),
        rules=rules,
        ignored=ignored,
        aliases=(("model.layer.", "layer."),),
    ),
)
