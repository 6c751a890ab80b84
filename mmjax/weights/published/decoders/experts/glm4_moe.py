"""GLM-4.5 and 4.6 (arXiv 2508.06471), `Glm4MoeForCausalLM`: DeepSeek-V3's experts, and heads that rotate in part."""

from collections.abc import Mapping
from typing import Any

from configs.architectures import BackboneConfig
from mmjax.weights.published.decoders.shared.llama_like import (
    attention_rules,
    embedding_and_head_rules,
    read_decoder,
    tied_head_duplicates,
    write_decoder,
)
from mmjax.weights.published.decoders.shared.rope_config import read_partial_rotary
from mmjax.weights.published.decoders.shared.routed_experts import (
    ignored_layers,
    read_routed_experts,
    routed_rules,
    write_routed_experts,
)
from mmjax.weights.published.decoders.shared.sparse_layers import block_rules
from mmjax.weights.published.rules import PublishedArchitecture, Rules, require_round_trip

BIASES = ("query", "key", "value")
DEFAULTS = {
    "rms_norm_eps": 1e-5,
    "partial_rotary_factor": 0.5,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 1408,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 1.0,
    "norm_topk_prob": True,
    "first_k_dense_replace": 1,
}


def rules(config: BackboneConfig) -> Rules:
    """Rules of the backbone."""
    everywhere = (*embedding_and_head_rules(config), *attention_rules(config))
    return {config.name: block_rules(config, everywhere, routed_rules(config))}


def read_config(values: Mapping[str, Any]) -> BackboneConfig:
    """Reads transformers' Glm4MoeConfig; keys that a file leaves out are as in GLM-4.5-Air."""
    values, rope_width = read_partial_rotary({**DEFAULTS, **values})
    return read_decoder(
        values,
        BIASES if values.get("attention_bias") else (),
        rope_width=rope_width,
        qk_norm="head" if values.get("use_qk_norm") else "none",
        experts=read_routed_experts(values),
    )


def write_config(config: BackboneConfig) -> dict[str, Any]:
    """Writes transformers' Glm4MoeConfig."""
    values = {
        **write_decoder(config),
        **write_routed_experts(config),
        "head_dim": config.head_width,
        "partial_rotary_factor": config.rotary_width / config.head_width,
        "attention_bias": bool(config.biases),
        "use_qk_norm": config.qk_norm != "none",
    }
    require_round_trip(config, read_config(values))
    return values


PUBLISHED = (
    PublishedArchitecture(
        name="Glm4MoeForCausalLM",
        model_types=("glm4_moe",),
        config_type=BackboneConfig,
        read_config=read_config,
        write_config=write_config,
        rules=rules,
        ignored=ignored_layers,
        duplicates=tied_head_duplicates,
    ),
)
