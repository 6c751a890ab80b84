"""ViT (arXiv 2010.11929), as `ViTModel` of transformers names it."""

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
"""By the path in our block, the name in theirs."""

DEFAULTS = {**VIT_BASE_DEFAULTS, "layer_norm_eps": 1e-12, "hidden_act": "gelu"}
"""What transformers takes where a file says nothing."""


def rules(config: VisionConfig) -> Rules:
    """The encoder's."""
    found = (
        *patch_embedding_rules("embeddings.patch_embeddings.projection", config),
        class_token_rule("embeddings.cls_token", config, before=(1, 1)),
        position_table_rule("embeddings.position_embeddings", config, before=(1,)),
        *block_rules(BLOCK, NAMES, config),
        *(norm_rules("layernorm", "norm/norm", bias=True) if config.final_norm else ()),
    )
    return {config.name: found}


def read_config(values: Mapping[str, Any]) -> VisionConfig:
    """Of transformers' ViTConfig."""
    biases = PROJECTIONS if values.get("qkv_bias", True) else ("output", "mlp")
    return read_encoder({**DEFAULTS, **values}, HALF_PIXELS, class_token=True, biases=biases)


def write_config(config: VisionConfig) -> dict[str, Any]:
    """For transformers' ViTConfig."""
    values = {**write_encoder(config), "qkv_bias": "query" in config.biases}
    require_encoder_round_trip(config, read_config(values))
    return values


def ignored(config: VisionConfig) -> tuple[str, ...]:
    """What stands behind the features, or hides patches from them, and what we leave out."""
    last = () if config.final_norm else ("layernorm.*",)
    return ("pooler.*", "classifier.*", "embeddings.mask_token", *last, *unused_block_patterns(BLOCK, config))


PUBLISHED = (
    PublishedArchitecture(
        "ViTModel", ("vit",), VisionConfig, read_config, write_config, rules, ignored, aliases=(("vit.", ""),)
    ),
)
