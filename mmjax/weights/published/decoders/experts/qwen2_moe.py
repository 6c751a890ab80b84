"""Qwen2-MoE and Qwen1.5-MoE (arXiv 2407.10671), `Qwen2MoeForCausalLM`: experts, and one that all tokens share."""

from typing import Any

from configs.architectures import BackboneConfig
from mmjax.weights.published.decoders.dense.qwen2 import BIASES, FULL_ATTENTION
from mmjax.weights.published.decoders.shared.expert_rules import BALANCE, expert_rules, require_experts
from mmjax.weights.published.decoders.shared.llama_like import (
    LLAMA_KEYS,
    MLP,
    attention_rules,
    biases,
    decoder_architecture,
    embedding_and_head_rules,
    gated_mlp_rules,
)
from mmjax.weights.published.decoders.shared.sparse_layers import SPARSE_LAYERS, block_rules
from mmjax.weights.published.key_table import Key, Keys
from mmjax.weights.published.rules import Rule, Rules
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


def require_shared_expert(config: BackboneConfig) -> dict[str, Any]:
    """Returns no key; raises ValueError where there is no shared expert."""
    if not require_experts(config).shared_ffn:
        raise ValueError("experts.shared_ffn is 0, but every block of the published architecture has a shared expert")
    return {}


KEYS = (
    *LLAMA_KEYS,
    Key("moe_intermediate_size", "experts.ffn"),
    Key("shared_expert_intermediate_size", "experts.shared_ffn"),
    Key("num_experts", "experts.count", 60),
    Key("num_experts_per_tok", "experts.top_k", 4),
    Key("norm_topk_prob", "experts.router.normalise", False, bool),
    BALANCE,
    biases({"qkv_bias": BIASES}, default=True),
    SPARSE_LAYERS,
    FULL_ATTENTION,
    Keys(write=require_shared_expert),
)

PUBLISHED = (decoder_architecture("Qwen2MoeForCausalLM", "qwen2_moe", KEYS, rules=rules),)
