"""ViT (arXiv 2010.11929), `ViTModel` of transformers."""

from configs.architectures import VisionConfig
from mmjax.weights.published.encoders.shared.vision_keys import ENCODER_KEYS, HALF_PIXELS, query_key_value_bias
from mmjax.weights.published.encoders.shared.vision_rules import (
    VIT_ATTENTION_NAMES,
    block_rules,
    final_norm_rules,
    unused_patterns,
    vit_embedding_rules,
)
from mmjax.weights.published.encoders.shared.vision_transformer import VIT_BASE_DEFAULTS, encoder_architecture
from mmjax.weights.published.key_table import Fields
from mmjax.weights.published.rules import Rules
from mmjax.weights.published.table_architecture import with_defaults

BLOCK = "encoder.layer.{layer}"
NAMES = {
    "attention_norm": "layernorm_before",
    **VIT_ATTENTION_NAMES,
    "mlp_norm": "layernorm_after",
    "mlp/up": "intermediate.dense",
    "mlp/down": "output.dense",
}
"""Names in a block of the checkpoint, by the path in a block here."""

DEFAULTS = {**VIT_BASE_DEFAULTS, "layer_norm_eps": 1e-12, "hidden_act": "gelu", "qkv_bias": True}
"""Values that transformers assumes where a file leaves them out."""


def rules(config: VisionConfig) -> Rules:
    """Rules of the encoder."""
    encoder = (
        *vit_embedding_rules(config),
        *block_rules(BLOCK, NAMES, config),
        *final_norm_rules("layernorm", config),
    )
    return {config.name: encoder}


def ignored(config: VisionConfig) -> tuple[str, ...]:
    """Tensors of layers after the features, the mask token of pretraining, and unused blocks."""
    return ("pooler.*", "classifier.*", "embeddings.mask_token", *unused_patterns(BLOCK, config, "layernorm"))


PUBLISHED = (
    encoder_architecture(
        "ViTModel",
        ("vit",),
        (*ENCODER_KEYS, HALF_PIXELS, query_key_value_bias("qkv_bias"), Fields({"class_token": True})),
        prepare=with_defaults(DEFAULTS),
        rules=rules,
        ignored=ignored,
        aliases=(("vit.", ""),),
    ),
)
