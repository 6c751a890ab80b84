"""The text models of Llama 4, `Llama4ForCausalLM`, whose layers are all dense."""

from collections.abc import Mapping
from typing import Any

from configs.architectures import BackboneConfig
from mmjax.weights.published.decoders.llama4_attention import (
    llama4_attention_rules,
    read_llama4_attention,
    write_llama4_attention,
)
from mmjax.weights.published.decoders.llama_like import (
    embedding_and_head_rules,
    ignored_buffers,
    mlp_rules,
    read_decoder,
    tied_head_duplicates,
    write_decoder,
)
from mmjax.weights.published.rules import PublishedArchitecture, Rules, require_round_trip

DEFAULTS = {"head_dim": 128, "rope_theta": 5e5, "rms_norm_eps": 1e-5}


def rules(config: BackboneConfig) -> Rules:
    """Rules of the backbone."""
    feed_forward = mlp_rules(config, "feed_forward")
    return {config.name: (*embedding_and_head_rules(config), *llama4_attention_rules(config), *feed_forward)}


def read_config(values: Mapping[str, Any]) -> BackboneConfig:
    """Reads transformers' Llama4TextConfig."""
    step = values.get("interleave_moe_layer_step", 1)
    with_experts = values.get("moe_layers")
    if with_experts is None:
        with_experts = list(range(step - 1, values["num_hidden_layers"], step))
    if with_experts:
        raise ValueError(f"moe_layers is {with_experts}; only dense layers can be computed")
    dense = {**DEFAULTS, **values, "intermediate_size": values["intermediate_size_mlp"]}
    return read_decoder(dense, (), **read_llama4_attention(values))


def write_config(config: BackboneConfig) -> dict[str, Any]:
    """Writes transformers' Llama4TextConfig."""
    values = {
        **write_decoder(config),
        **write_llama4_attention(config),
        "head_dim": config.head_width,
        "intermediate_size_mlp": config.ffn,
        "moe_layers": [],
    }
    require_round_trip(config, read_config(values))
    return values


PUBLISHED = (
    PublishedArchitecture(
        name="Llama4ForCausalLM",
        model_types=("llama4_text",),
        config_type=BackboneConfig,
        read_config=read_config,
        write_config=write_config,
        rules=rules,
        ignored=ignored_buffers,
        duplicates=tied_head_duplicates,
    ),
)
