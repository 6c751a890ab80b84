"""DeepSeek-V3 (arXiv 2412.19437), `DeepseekV3ForCausalLM`, whose layers are all dense: latent attention."""

from collections.abc import Mapping
from typing import Any

from configs.architectures import BackboneConfig
from mmjax.weights.published.decoders.latent_attention import (
    latent_attention_rules,
    read_latent_attention,
    write_latent_attention,
)
from mmjax.weights.published.decoders.llama_like import (
    embedding_and_head_rules,
    ignored_buffers,
    mlp_rules,
    read_decoder,
    tied_head_duplicates,
    write_decoder,
)
from mmjax.weights.published.rules import PublishedArchitecture, Rules, require_round_trip


def rules(config: BackboneConfig) -> Rules:
    """Rules of the backbone."""
    return {config.name: (*embedding_and_head_rules(config), *latent_attention_rules(config), *mlp_rules(config))}


def read_config(values: Mapping[str, Any]) -> BackboneConfig:
    """Reads transformers' DeepseekV3Config."""
    dense, depth = values.get("first_k_dense_replace", 0), values["num_hidden_layers"]
    if dense < depth:
        raise ValueError(f"first_k_dense_replace is {dense} of {depth} layers; only dense layers can be computed")
    return read_decoder({**values, "head_dim": None}, (), **read_latent_attention(values))


def write_config(config: BackboneConfig) -> dict[str, Any]:
    """Writes transformers' DeepseekV3Config."""
    values = {**write_decoder(config), **write_latent_attention(config), "first_k_dense_replace": config.depth}
    require_round_trip(config, read_config(values))
    return values


def ignored(config: BackboneConfig) -> tuple[str, ...]:
    """Computed buffers, and the layers that predict further tokens, which come after the others."""
    return (*ignored_buffers(config), f"model.layers.{config.depth}.*")


PUBLISHED = (
    PublishedArchitecture(
        name="DeepseekV3ForCausalLM",
        model_types=("deepseek_v3",),
        config_type=BackboneConfig,
        read_config=read_config,
        write_config=write_config,
        rules=rules,
        ignored=ignored,
        duplicates=tied_head_duplicates,
    ),
)
