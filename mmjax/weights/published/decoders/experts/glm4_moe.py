"""GLM-4.5 and 4.6 (arXiv 2508.06471), `Glm4MoeForCausalLM`: DeepSeek-V3's experts, and partial rotary positions."""

from configs.architectures import BackboneConfig
from mmjax.weights.published.decoders.shared.llama_like import (
    HEAD_WIDTH,
    SILU,
    SIZES,
    TYING_AND_EPSILON,
    attention_rules,
    biases,
    decoder_architecture,
    embedding_and_head_rules,
)
from mmjax.weights.published.decoders.shared.rope_config import (
    read_partial_rotary_fields,
    write_rotary,
    write_rotated_part,
)
from mmjax.weights.published.decoders.shared.routed_experts import ROUTED_EXPERTS, ignored_layers, routed_rules
from mmjax.weights.published.decoders.shared.sparse_layers import block_rules
from mmjax.weights.published.key_table import Keys
from mmjax.weights.published.rules import Rules
from mmjax.weights.published.table_architecture import with_defaults

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


KEYS = (
    *SIZES,
    SILU,
    Keys(read_partial_rotary_fields, write_rotary),
    *TYING_AND_EPSILON,
    ROUTED_EXPERTS,
    HEAD_WIDTH,
    Keys(write=write_rotated_part),
    biases({"attention_bias": BIASES}),
    Keys(
        lambda values: {"qk_norm": "head" if values.get("use_qk_norm") else "none"},
        lambda config: {"use_qk_norm": config.qk_norm != "none"},
    ),
)

PUBLISHED = (
    decoder_architecture(
        "Glm4MoeForCausalLM",
        "glm4_moe",
        KEYS,
        prepare=with_defaults(DEFAULTS),
        rules=rules,
        ignored=ignored_layers,
    ),
)
