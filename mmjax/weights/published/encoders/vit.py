"""ViT (arXiv 2010.11929), `ViTModel` of transformers."""

from collections.abc import Mapping
from typing import Any

from configs.architectures import VisionConfig
from configs.transformer import PROJECTIONS
from mmjax.weights.published.encoders.vision_transformer import (
    HALF_PIXELS,
    VIT_BASE_DEFAULTS,
    block_rules,
    class_token_rule,
    patch_embedding_rules,
    position_table_rule,
    read_encoder,
    require_encoder_round_trip,
    unused_block_patterns,
    write_encoder,
)
from mmjax.weights.published.rules import PublishedArchitecture, Rules, norm_rules

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


def read_config(values: Mapping[str, Any]) -> VisionConfig:
    """Reads transformers' ViTConfig."""
    biases = PROJECTIONS if values.get("qkv_bias", True) else ("output", "mlp")
    return read_encoder({**DEFAULTS, **values}, HALF_PIXELS, class_token=True, biases=biases)


def write_config(config: VisionConfig) -> dict[str, Any]:
    """Writes transformers' ViTConfig."""
    values = {**write_encoder(config), "qkv_bias": "query" in config.biases}
    require_encoder_round_trip(config, read_config(values))
    return values


def ignored(config: VisionConfig) -> tuple[str, ...]:
    """Tensors of layers after the features, the mask token of pretraining, and unused blocks."""
    final_norm = () if config.final_norm else ("layernorm.*",)
    return ("pooler.*", "classifier.*", "embeddings.mask_token", *final_norm, *unused_block_patterns(BLOCK, config))


PUBLISHED = (
    PublishedArchitecture(
        name="ViTModel",
        model_types=("vit",),
        config_type=VisionConfig,
        read_config=read_config,
        write_config=write_config,
        rules=rules,
        ignored=ignored,
        aliases=(("vit.", ""),),
    ),
)
