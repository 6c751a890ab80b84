"""DeepSeek-V3 (arXiv 2412.19437), `DeepseekV3ForCausalLM`: latent attention, and experts behind the first layers."""

from collections.abc import Mapping
from typing import Any

from configs.architectures import BackboneConfig
from mmjax.weights.published.decoders.shared.latent_attention import (
    latent_attention_rules,
    read_latent_attention,
    write_latent_attention,
)
from mmjax.weights.published.decoders.shared.llama_like import (
    embedding_and_head_rules,
    read_decoder,
    tied_head_duplicates,
    write_decoder,
)
from mmjax.weights.published.decoders.shared.routed_experts import (
    ignored_layers,
    read_routed_experts,
    routed_rules,
    write_routed_experts,
)
from mmjax.weights.published.decoders.shared.sparse_layers import block_rules
from mmjax.weights.published.rules import PublishedArchitecture, Rules, require_round_trip

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


def read_config(values: Mapping[str, Any]) -> BackboneConfig:
    """Reads transformers' DeepseekV3Config; keys that a file leaves out are as in DeepSeek-V3."""
    values = {**DEFAULTS, **values, "head_dim": None}
    return read_decoder(values, (), experts=read_routed_experts(values), **read_latent_attention(values))


def write_config(config: BackboneConfig) -> dict[str, Any]:
    """Writes transformers' DeepseekV3Config."""
    values = {**write_decoder(config), **write_latent_attention(config), **write_routed_experts(config)}
    require_round_trip(config, read_config(values))
    return values


PUBLISHED = (
    PublishedArchitecture(
        name="DeepseekV3ForCausalLM",
        model_types=("deepseek_v3",),
        config_type=BackboneConfig,
        read_config=read_config,
        write_config=write_config,
        rules=rules,
        ignored=ignored_layers,
        duplicates=tied_head_duplicates,
    ),
)
