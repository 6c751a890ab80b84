"""Qwen2-MoE and Qwen1.5-MoE (arXiv 2407.10671), `Qwen2MoeForCausalLM`: experts, and one that all tokens share."""

from collections.abc import Mapping
from typing import Any

from configs.architectures import BackboneConfig, ExpertsConfig, RouterConfig
from mmjax.weights.published.decoders.dense.qwen2 import BIASES, require_full_attention
from mmjax.weights.published.decoders.shared.expert_rules import (
    expert_rules,
    read_balance_weight,
    require_experts,
    write_balance_weight,
)
from mmjax.weights.published.decoders.shared.llama_like import (
    MLP,
    attention_rules,
    embedding_and_head_rules,
    gated_mlp_rules,
    ignored_buffers,
    read_decoder,
    tied_head_duplicates,
    write_decoder,
)
from mmjax.weights.published.decoders.shared.sparse_layers import block_rules, read_sparse_layers, write_sparse_layers
from mmjax.weights.published.rules import PublishedArchitecture, Rule, Rules, require_round_trip
from mmjax.weights.published.tensor_layouts import LINEAR


def rules(config: BackboneConfig) -> Rules:
    """Rules of the backbone."""
    experts = expert_rules(config, f"{MLP}.experts")
    shared_expert = gated_mlp_rules(f"{MLP}.shared_expert", "blocks/mlp/shared")
    routing = (
        Rule(f"{MLP}.gate.weight", "blocks/mlp/router", LINEAR),
        Rule(f"{MLP}.shared_expert_gate.weight", "blocks/mlp/shared_gate/kernel", LINEAR),
    )
    everywhere = (*embedding_and_head_rules(config), *attention_rules(config))
    return {config.name: block_rules(config, everywhere, (*routing, *experts, *shared_expert))}


def read_config(values: Mapping[str, Any]) -> BackboneConfig:
    """Reads transformers' Qwen2MoeConfig; keys that a file leaves out are as in Qwen1.5-MoE-A2.7B."""
    require_full_attention(values)
    experts = ExpertsConfig(
        count=values.get("num_experts", 60),
        top_k=values.get("num_experts_per_tok", 4),
        ffn=values["moe_intermediate_size"],
        shared_ffn=values["shared_expert_intermediate_size"],
        router=RouterConfig(normalise=bool(values.get("norm_topk_prob", False))),
        **read_sparse_layers(values),
        balance_weight=read_balance_weight(values),
    )
    return read_decoder(values, BIASES if values.get("qkv_bias", True) else (), experts=experts)


def write_config(config: BackboneConfig) -> dict[str, Any]:
    """Writes transformers' Qwen2MoeConfig."""
    experts = require_experts(config)
    values = {
        **write_decoder(config),
        "moe_intermediate_size": experts.ffn,
        "shared_expert_intermediate_size": experts.shared_ffn,
        "num_experts": experts.count,
        "num_experts_per_tok": experts.top_k,
        "norm_topk_prob": experts.router.normalise,
        **write_balance_weight(experts),
        "qkv_bias": "query" in config.biases,
        **write_sparse_layers(experts),
        "use_sliding_window": False,
    }
    if not experts.shared_ffn:
        raise ValueError("experts.shared_ffn is 0, but every block of the published architecture has a shared expert")
    require_round_trip(config, read_config(values))
    return values


PUBLISHED = (
    PublishedArchitecture(
        name="Qwen2MoeForCausalLM",
        model_types=("qwen2_moe",),
        config_type=BackboneConfig,
        read_config=read_config,
        write_config=write_config,
        rules=rules,
        ignored=ignored_buffers,
        duplicates=tied_head_duplicates,
    ),
)
