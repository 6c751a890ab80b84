"""SigLIP's image tower (arXiv 2303.15343), as `SiglipVisionModel` of transformers names it; whole models hold one."""

from collections.abc import Mapping
from typing import Any

from configs.architectures import VisionConfig
from mmjax.weights.published.encoders.vision_transformer import (
    CLIP_BLOCK_NAMES,
    HALF_PIXELS,
    VIT_BASE_DEFAULTS,
    block_rules,
    patch_embedding_rules,
    position_table_rule,
    read_encoder,
    require_encoder_round_trip,
    unused_block_patterns,
    write_encoder,
)
from mmjax.weights.published.rules import PublishedArchitecture, Rules, norm_rules

TOWER = "vision_model"
BLOCK = f"{TOWER}.encoder.layers.{{layer}}"
DEFAULTS = {**VIT_BASE_DEFAULTS, "layer_norm_eps": 1e-6, "hidden_act": "gelu_pytorch_tanh"}
"""What transformers takes where a file says nothing, as many of SigLIP's do."""

ALIASES = tuple((f"{part}.", f"{TOWER}.{part}.") for part in ("embeddings", "encoder", "post_layernorm", "head"))
"""transformers 5 saves a tower alone without its prefix."""


def rules(config: VisionConfig) -> Rules:
    """The encoder's."""
    last = norm_rules(f"{TOWER}.post_layernorm", "norm/norm", bias=True) if config.final_norm else ()
    found = (
        *patch_embedding_rules(f"{TOWER}.embeddings.patch_embedding", config),
        position_table_rule(f"{TOWER}.embeddings.position_embedding.weight", config),
        *block_rules(BLOCK, CLIP_BLOCK_NAMES, config),
        *last,
    )
    return {config.name: found}


def read_config(values: Mapping[str, Any]) -> VisionConfig:
    """Of transformers' SiglipVisionConfig, or a SiglipConfig that holds one."""
    return read_encoder({**DEFAULTS, **values, **values.get("vision_config", {})}, HALF_PIXELS)


def write_config(config: VisionConfig) -> dict[str, Any]:
    """For transformers' SiglipVisionConfig."""
    values = write_encoder(config)
    require_encoder_round_trip(config, read_config(values))
    return values


def ignored(config: VisionConfig) -> tuple[str, ...]:
    """The head that pools, what we leave out of the tower, and what whole models hold beside it."""
    of_tower = (f"{TOWER}.head.*", f"{TOWER}.embeddings.position_ids", *unused_block_patterns(BLOCK, config))
    last = () if config.final_norm else (f"{TOWER}.post_layernorm.*",)
    return (*of_tower, *last, "text_model.*", "logit_scale", "logit_bias")


PUBLISHED = (
    PublishedArchitecture(
        "SiglipVisionModel",
        ("siglip_vision_model", "siglip"),
        VisionConfig,
        read_config,
        write_config,
        rules,
        ignored,
        aliases=ALIASES,
    ),
)
