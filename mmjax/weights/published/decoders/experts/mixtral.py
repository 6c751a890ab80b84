"""Mixtral (arXiv 2401.04088), `MixtralForCausalLM`: Llama's blocks, with a tensor for each matrix of each expert."""

from collections.abc import Mapping
from typing import Any

from configs.architectures import BackboneConfig, ExpertsConfig
from mmjax.weights.published.decoders.shared.expert_rules import (
    expert_rules,
    read_balance_weight,
    require_experts,
    write_balance_weight,
)
from mmjax.weights.published.decoders.shared.llama_like import (
    BLOCK,
    NUMBERED_MLP_MATRICES,
    attention_rules,
    embedding_and_head_rules,
    ignored_buffers,
    read_decoder,
    tied_head_duplicates,
    write_decoder,
)
from mmjax.weights.published.rules import PublishedArchitecture, Rule, Rules, require_round_trip
from mmjax.weights.published.tensor_layouts import LINEAR

MOE = f"{BLOCK}.block_sparse_moe"


def rules(config: BackboneConfig) -> Rules:
    """Rules of the backbone."""
    experts = expert_rules(config, f"{MOE}.experts", NUMBERED_MLP_MATRICES)
    router = Rule(f"{MOE}.gate.weight", "blocks/mlp/router", LINEAR)
    return {config.name: (*embedding_and_head_rules(config), *attention_rules(config), router, *experts)}


def read_config(values: Mapping[str, Any]) -> BackboneConfig:
    """Reads transformers' MixtralConfig; keys that a file leaves out are as in Mixtral 8x7B."""
    if values.get("sliding_window"):
        raise ValueError(
            f"sliding_window is {values['sliding_window']!r}; only attention to all earlier positions can be computed"
        )
    experts = ExpertsConfig(
        count=values.get("num_local_experts", 8),
        top_k=values.get("num_experts_per_tok", 2),
        ffn=values["intermediate_size"],
        balance_weight=read_balance_weight(values),
    )
    return read_decoder({"rope_theta": 1e6, "rms_norm_eps": 1e-5, **values}, (), experts=experts)


def write_config(config: BackboneConfig) -> dict[str, Any]:
    """Writes transformers' MixtralConfig."""
    experts = require_experts(config)
    values = {
        **write_decoder(config),
        "intermediate_size": experts.ffn,
        "head_dim": config.head_width,
        "num_local_experts": experts.count,
        "num_experts_per_tok": experts.top_k,
        **write_balance_weight(experts),
        "sliding_window": None,
    }
    require_round_trip(config, read_config(values), except_fields=("ffn",))
    return values


PUBLISHED = (
    PublishedArchitecture(
        name="MixtralForCausalLM",
        model_types=("mixtral",),
        config_type=BackboneConfig,
        read_config=read_config,
        write_config=write_config,
        rules=rules,
        ignored=ignored_buffers,
        duplicates=tied_head_duplicates,
    ),
)
