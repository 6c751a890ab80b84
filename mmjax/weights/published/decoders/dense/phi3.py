"""Phi-3 (arXiv 2404.14219) and Phi-4 (2412.08905), `Phi3ForCausalLM`: Llama's blocks with fused projections.

Phi-4-mini (2503.01743) rotates a part of every head. Models for long texts have LongRoPE; `LongRopeScaling.long` is not
in config.json, which is read for texts of up to the original positions.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from configs.architectures import BackboneConfig
from configs.rope import LongRopeScaling
from mmjax.weights.published.decoders.shared.attention_types import read_attention_types, write_attention_types
from mmjax.weights.published.decoders.shared.llama_like import (
    BLOCK,
    embedding_and_head_rules,
    ignored_buffers,
    read_decoder,
    tied_head_duplicates,
    write_decoder,
)
from mmjax.weights.published.decoders.shared.rope_config import read_partial_rotary
from mmjax.weights.published.rules import PublishedArchitecture, Rule, Rules, linear_rules, require_round_trip
from mmjax.weights.published.tensor_layouts import LINEAR, Fused

EARLIER_NAMES = ("su", "yarn")
"""LongRoPE in files of transformers before it had that name; no Phi has YaRN."""


def rules(config: BackboneConfig) -> Rules:
    """Rules of the backbone."""
    fused = (
        ("self_attn.qkv_proj", [f"blocks/attention/{name}/kernel" for name in ("query", "key", "value")]),
        ("mlp.gate_up_proj", [f"blocks/mlp/{name}/kernel" for name in ("gate", "up")]),
    )
    matrices = (Rule(f"{BLOCK}.{name}.weight", tuple(paths), Fused()) for name, paths in fused)
    outputs = (
        *linear_rules(f"{BLOCK}.self_attn.o_proj", "blocks/attention/output", LINEAR, bias=False),
        *linear_rules(f"{BLOCK}.mlp.down_proj", "blocks/mlp/down", LINEAR, bias=False),
    )
    return {config.name: (*embedding_and_head_rules(config), *matrices, *outputs)}


def read_config(values: Mapping[str, Any]) -> BackboneConfig:
    """Reads transformers' Phi3Config."""
    if values.get("attention_bias"):
        raise ValueError("attention_bias is true, but Phi-3's projections have none")
    values, rope_width = read_partial_rotary({"rms_norm_eps": 1e-5, **values})
    for name in ("rope_parameters", "rope_scaling"):
        kind = (values.get(name) or {}).get("rope_type") or (values.get(name) or {}).get("type")
        if kind in EARLIER_NAMES:
            values = {**values, name: {**values[name], "rope_type": "longrope"}}
    return read_decoder(values, (), rope_width=rope_width, **read_attention_types(values, ("sliding_attention",)))


def write_config(config: BackboneConfig) -> dict[str, Any]:
    """Writes transformers' Phi3Config."""
    if len(config.attention_kinds) > 1:
        raise ValueError(f"attention_pattern is {config.attention_pattern}; all layers of Phi-3 are of one kind")
    decoder = {key: value for key, value in write_decoder(config).items() if key != "head_dim"}
    window = write_attention_types(config)["sliding_window"]
    values = {
        **decoder,
        "sliding_window": window,
        "partial_rotary_factor": config.rotary_width / config.head_width,
        "pad_token_id": None,  # by default an id above small vocabularies
    }
    scaling = config.rope_scaling
    if isinstance(scaling, LongRopeScaling):
        values["original_max_position_embeddings"] = scaling.original_positions
        values["max_position_embeddings"] = round(scaling.factor * scaling.original_positions)
        config = dataclasses.replace(config, rope_scaling=dataclasses.replace(scaling, long=False))
    require_round_trip(config, read_config(values))
    return values


PUBLISHED = (
    PublishedArchitecture(
        name="Phi3ForCausalLM",
        model_types=("phi3",),
        config_type=BackboneConfig,
        read_config=read_config,
        write_config=write_config,
        rules=rules,
        ignored=ignored_buffers,
        duplicates=tied_head_duplicates,
    ),
)
