"""Mixtral (arXiv 2401.04088), `MixtralForCausalLM`: Llama's blocks, with a tensor for each matrix of each expert."""

from typing import Any

from configs.architectures import BackboneConfig
from mmjax.weights.published.decoders.shared.expert_rules import BALANCE, expert_rules, with_width_of_experts
from mmjax.weights.published.decoders.shared.llama_like import (
    BLOCK,
    HEAD_WIDTH,
    LLAMA_KEYS,
    NUMBERED_MLP_MATRICES,
    attention_rules,
    decoder_architecture,
    embedding_and_head_rules,
)
from mmjax.weights.published.key_table import Key, Keys, Values
from mmjax.weights.published.rules import Rule, Rules
from mmjax.weights.published.table_architecture import with_defaults
from mmjax.weights.published.tensor_layouts import LINEAR

MOE = f"{BLOCK}.block_sparse_moe"


def rules(config: BackboneConfig) -> Rules:
    """Rules of the backbone."""
    experts = expert_rules(config, f"{MOE}.experts", NUMBERED_MLP_MATRICES)
    router = Rule(f"{MOE}.gate.weight", "blocks/mlp/router", LINEAR)
    return {config.name: (*embedding_and_head_rules(config), *attention_rules(config), router, *experts)}


def require_no_window(values: Values) -> dict[str, Any]:
    """Returns no field; raises ValueError where attention is limited to a sliding window."""
    if values.get("sliding_window"):
        raise ValueError(
            f"sliding_window is {values['sliding_window']!r}; only attention to all earlier positions can be computed"
        )
    return {}


KEYS = (
    *LLAMA_KEYS,
    Key("intermediate_size", "experts.ffn"),
    HEAD_WIDTH,
    Key("num_local_experts", "experts.count", 8),
    Key("num_experts_per_tok", "experts.top_k", 2),
    BALANCE,
    Keys(require_no_window, lambda _: {"sliding_window": None}),
)

PUBLISHED = (
    decoder_architecture(
        "MixtralForCausalLM",
        "mixtral",
        KEYS,
        prepare=with_defaults({"rope_theta": 1e6, "rms_norm_eps": 1e-5}),
        as_written=with_width_of_experts,
        rules=rules,
    ),
)
