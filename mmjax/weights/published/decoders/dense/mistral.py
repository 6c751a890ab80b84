"""Mistral (arXiv 2310.06825), `MistralForCausalLM`: Llama's blocks, in some models with attention to a window."""

from collections.abc import Mapping
from typing import Any

from configs.architectures import BackboneConfig
from mmjax.weights.published.decoders.shared.attention_types import read_attention_types, write_attention_types
from mmjax.weights.published.decoders.shared.llama_like import (
    decoder_rules,
    ignored_buffers,
    read_decoder,
    tied_head_duplicates,
    write_decoder,
)
from mmjax.weights.published.rules import PublishedArchitecture, require_round_trip


def read_config(values: Mapping[str, Any]) -> BackboneConfig:
    """Reads transformers' MistralConfig; a file without `sliding_window` is of a model with global attention."""
    return read_decoder(values, (), **read_attention_types(values, ("sliding_attention",)))


def write_config(config: BackboneConfig) -> dict[str, Any]:
    """Writes transformers' MistralConfig."""
    if len(config.attention_kinds) > 1:
        raise ValueError(f"attention_pattern is {config.attention_pattern}; all layers of Mistral are of one kind")
    window = write_attention_types(config)["sliding_window"]
    values = {**write_decoder(config), "sliding_window": window}
    require_round_trip(config, read_config(values))
    return values


PUBLISHED = (
    PublishedArchitecture(
        name="MistralForCausalLM",
        model_types=("mistral",),
        config_type=BackboneConfig,
        read_config=read_config,
        write_config=write_config,
        rules=decoder_rules,
        ignored=ignored_buffers,
        duplicates=tied_head_duplicates,
    ),
)
