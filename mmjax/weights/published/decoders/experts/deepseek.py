"""DeepSeek-V3 (arXiv 2412.19437), `DeepseekV3ForCausalLM`: latent attention, and experts behind the first layers."""

from configs.architectures import BackboneConfig
from mmjax.weights.published.decoders.shared.latent_attention import LATENT_ATTENTION, latent_attention_rules
from mmjax.weights.published.decoders.shared.llama_like import (
    LLAMA_KEYS,
    decoder_architecture,
    embedding_and_head_rules,
)
from mmjax.weights.published.decoders.shared.routed_experts import ROUTED_EXPERTS, ignored_layers, routed_rules
from mmjax.weights.published.decoders.shared.sparse_layers import block_rules
from mmjax.weights.published.key_table import Values
from mmjax.weights.published.rules import Rules

DEFAULTS = {
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "n_group": 8,
    "topk_group": 4,
    "routed_scaling_factor": 2.5,
    "norm_topk_prob": True,
    "first_k_dense_replace": 3,
}


def rules(config: BackboneConfig) -> Rules:
    """Rules of the backbone."""
    everywhere = (*embedding_and_head_rules(config), *latent_attention_rules(config))
    return {config.name: block_rules(config, everywhere, routed_rules(config))}


def prepare(values: Values) -> Values:
    """Completes a config.json; keys that a file leaves out are as in DeepSeek-V3."""
    return {**DEFAULTS, **values, "head_dim": None}


KEYS = (*LLAMA_KEYS, LATENT_ATTENTION, ROUTED_EXPERTS)

PUBLISHED = (
    decoder_architecture(
        "DeepseekV3ForCausalLM", "deepseek_v3", KEYS, prepare=prepare, rules=rules, ignored=ignored_layers
    ),
)
