"""SigLIP's image tower (arXiv 2303.15343), `SiglipVisionModel` of transformers, which whole models contain."""

import dataclasses
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
"""Values that transformers assumes where a file leaves them out, as many of SigLIP's do."""

ALIASES = tuple((f"{part}.", f"{TOWER}.{part}.") for part in ("embeddings", "encoder", "post_layernorm", "head"))
"""Version 5 of transformers saves the tower of a model alone without its prefix."""


def rules(config: VisionConfig) -> Rules:
    """Rules of the encoder."""
    final_norm = norm_rules(f"{TOWER}.post_layernorm", "norm/norm", bias=True) if config.final_norm else ()
    encoder = (
        *patch_embedding_rules(f"{TOWER}.embeddings.patch_embedding", config),
        position_table_rule(f"{TOWER}.embeddings.position_embedding.weight", config),
        *block_rules(BLOCK, CLIP_BLOCK_NAMES, config),
        *final_norm,
    )
    return {config.name: encoder}


def read_config(values: Mapping[str, Any]) -> VisionConfig:
    """Reads transformers' SiglipVisionConfig, or a SiglipConfig that contains one."""
    return read_encoder({**DEFAULTS, **values, **values.get("vision_config", {})}, HALF_PIXELS)


def write_config(config: VisionConfig) -> dict[str, Any]:
    """Writes transformers' SiglipVisionConfig."""
    values = write_encoder(config)
    require_encoder_round_trip(config, read_config(values))
    return values


def read_without_norm(values: Mapping[str, Any]) -> VisionConfig:
    """Reads transformers' SiglipVisionConfig of a tower whose last norm is not used."""
    return dataclasses.replace(read_config(values), final_norm=False)


def write_without_norm(config: VisionConfig) -> dict[str, Any]:
    """Writes transformers' SiglipVisionConfig of such a tower."""
    values = write_encoder(config)
    require_encoder_round_trip(config, read_without_norm(values))
    return values


def ignored(config: VisionConfig) -> tuple[str, ...]:
    """The pooling head, unused blocks, and what whole models have in addition to the tower."""
    tower = (f"{TOWER}.head.*", f"{TOWER}.embeddings.position_ids", *unused_block_patterns(BLOCK, config))
    final_norm = () if config.final_norm else (f"{TOWER}.post_layernorm.*",)
    return (*tower, *final_norm, "text_model.*", "logit_scale", "logit_bias")


PUBLISHED = (
    PublishedArchitecture(
        name="SiglipVisionModel",
        model_types=("siglip_vision_model", "siglip"),
        config_type=VisionConfig,
        read_config=read_config,
        write_config=write_config,
        rules=rules,
        ignored=ignored,
        aliases=ALIASES,
    ),
)

WITHOUT_NORM = dataclasses.replace(PUBLISHED[0], read_config=read_without_norm, write_config=write_without_norm)
"""The tower in whole models that take the outputs of its last block, without the norm behind it."""
