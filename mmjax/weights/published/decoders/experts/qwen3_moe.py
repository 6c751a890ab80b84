"""Qwen3-MoE (arXiv 2505.09388), `Qwen3MoeForCausalLM`: Qwen3's attention, and experts without a shared one."""

from collections.abc import Mapping
from typing import Any

from configs.architectures import BackboneConfig, ExpertsConfig, RouterConfig
from mmjax.weights.published.decoders.dense.qwen3 import read_qwen3, write_qwen3
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
    ignored_buffers,
    tied_head_duplicates,
)
from mmjax.weights.published.decoders.shared.sparse_layers import block_rules, read_sparse_layers, write_sparse_layers
from mmjax.weights.published.rules import PublishedArchitecture, Rule, Rules, require_round_trip
from mmjax.weights.published.tensor_layouts import LINEAR


def rules(config: BackboneConfig) -> Rules:
    """Rules of the backbone."""
    experts = expert_rules(config, f"{MLP}.experts")
    router = Rule(f"{MLP}.gate.weight", "blocks/mlp/router", LINEAR)
    everywhere = (*embedding_and_head_rules(config), *attention_rules(config))
    return {config.name: block_rules(config, everywhere, (router, *experts))}


def read_config(values: Mapping[str, Any]) -> BackboneConfig:
    """Reads transformers' Qwen3MoeConfig; keys that a file leaves out are as in Qwen3-30B-A3B."""
    experts = ExpertsConfig(
        count=values.get("num_experts", values.get("num_local_experts", 128)),  # the latter since version 5
        top_k=values.get("num_experts_per_tok", 8),
        ffn=values.get("moe_intermediate_size", 768),
        router=RouterConfig(normalise=bool(values.get("norm_topk_prob", False))),
        **read_sparse_layers(values),
        balance_weight=read_balance_weight(values),
    )
    return read_qwen3(values, experts=experts)


def write_config(config: BackboneConfig) -> dict[str, Any]:
    """Writes transformers' Qwen3MoeConfig."""
    experts = require_experts(config)
    values = {
        **write_qwen3(config),
        "moe_intermediate_size": experts.ffn,
        "num_experts": experts.count,
        "num_experts_per_tok": experts.top_k,
        "norm_topk_prob": experts.router.normalise,
        **write_balance_weight(experts),
        **write_sparse_layers(experts),
    }
    require_round_trip(config, read_config(values))
    return values


PUBLISHED = (
    PublishedArchitecture(
        name="Qwen3MoeForCausalLM",
        model_types=("qwen3_moe",),
        config_type=BackboneConfig,
        read_config=read_config,
        write_config=write_config,
        rules=rules,
        ignored=ignored_buffers,
        duplicates=tied_head_duplicates,
    ),
)
