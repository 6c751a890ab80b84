"""Qwen3-MoE (arXiv 2505.09388), `Qwen3MoeForCausalLM`: Qwen3's attention, and experts without a shared one."""

from configs.architectures import BackboneConfig
from mmjax.weights.published.decoders.dense.qwen3 import DEFAULTS, QWEN3_KEYS
from mmjax.weights.published.decoders.shared.expert_rules import BALANCE, expert_rules
from mmjax.weights.published.decoders.shared.llama_like import (
    MLP,
    attention_rules,
    decoder_architecture,
    embedding_and_head_rules,
)
from mmjax.weights.published.decoders.shared.sparse_layers import SPARSE_LAYERS, block_rules
from mmjax.weights.published.key_table import Key, Keys
from mmjax.weights.published.rules import Rule, Rules
from mmjax.weights.published.table_architecture import with_defaults
from mmjax.weights.published.tensor_layouts import LINEAR


def rules(config: BackboneConfig) -> Rules:
    """Rules of the backbone."""
    experts = expert_rules(config, f"{MLP}.experts")
    router = Rule(f"{MLP}.gate.weight", "blocks/mlp/router", LINEAR)
    everywhere = (*embedding_and_head_rules(config), *attention_rules(config))
    return {config.name: block_rules(config, everywhere, (router, *experts))}


KEYS = (
    *QWEN3_KEYS,
    Key("moe_intermediate_size", "experts.ffn", 768),
    Keys(
        # The second name since version 5 of transformers.
        lambda values: {"experts.count": values.get("num_experts", values.get("num_local_experts", 128))},
        lambda config: {"num_experts": config.experts.count},
    ),
    Key("num_experts_per_tok", "experts.top_k", 8),
    Key("norm_topk_prob", "experts.router.normalise", False, bool),
    BALANCE,
    SPARSE_LAYERS,
)

PUBLISHED = (
    decoder_architecture("Qwen3MoeForCausalLM", "qwen3_moe", KEYS, prepare=with_defaults(DEFAULTS), rules=rules),
)
