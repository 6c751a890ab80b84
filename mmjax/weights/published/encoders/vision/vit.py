"""ViT (arXiv 2010.11929), `ViTModel` of transformers."""

from configs.architectures import VisionConfig
from mmjax.weights.published.encoders.shared.vision_transformer import (
    HALF_PIXELS,
    QKV_BIAS,
    VIT_BASE_DEFAULTS,
    block_rules,
    class_token_rule,
    encoder_architecture,
    patch_embedding_rules,
    position_table_rule,
    unused_block_patterns,
)
from mmjax.weights.published.key_table import Fields
from mmjax.weights.published.rules import Rules, norm_rules
from mmjax.weights.published.table_architecture import with_defaults

BLOCK = "encoder.layer.{layer}"
NAMES = {
    "attention_norm": "layernorm_before",
    "attention/query": "attention.attention.query",
    "attention/key": "attention.attention.key",
    "attention/value": "attention.attention.value",
    "attention/output": "attention.output.dense",
    "mlp_norm": "layernorm_after",
    "mlp/up": "intermediate.dense",
    "mlp/down": "output.dense",
}
"""Names in a block of the checkpoint, by the path in a block here."""

DEFAULTS = {**VIT_BASE_DEFAULTS, "layer_norm_eps": 1e-12, "hidden_act": "gelu"}
"""Values that transformers assumes where a file leaves them out."""


def rules(config: VisionConfig) -> Rules:
    """Rules of the encoder."""
    encoder = (
        *patch_embedding_rules("embeddings.patch_embeddings.projection", config),
        class_token_rule("embeddings.cls_token", config, leading=(1, 1)),
        position_table_rule("embeddings.position_embeddings", config, leading=(1,)),
        *block_rules(BLOCK, NAMES, config),
        *(norm_rules("layernorm", "norm/norm", bias=True) if config.final_norm else ()),
    )
    return {config.name: encoder}


def ignored(config: VisionConfig) -> tuple[str, ...]:
    """Tensors of layers after the features, the mask token of pretraining, and unused blocks."""
    final_norm = () if config.final_norm else ("layernorm.*",)
    return ("pooler.*", "classifier.*", "embeddings.mask_token", *final_norm, *unused_block_patterns(BLOCK, config))


PUBLISHED = (
    encoder_architecture(
        "ViTModel",
        ("vit",),
        HALF_PIXELS,
        (QKV_BIAS, Fields({"class_token": True})),
        prepare=with_defaults(DEFAULTS),
        rules=rules,
        ignored=ignored,
        aliases=(("vit.", ""),),
    ),
)
