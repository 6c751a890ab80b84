"""Llama (arXiv 2302.13971, 2407.21783) and Yi (2403.04652), which has its architecture: `LlamaForCausalLM`."""

from collections.abc import Mapping
from typing import Any

from configs.architectures import BackboneConfig
from mmjax.weights.published.decoders.shared.llama_like import (
    decoder_rules,
    ignored_buffers,
    read_decoder,
    tied_head_duplicates,
    write_decoder,
)
from mmjax.weights.published.rules import PublishedArchitecture, require_round_trip

ATTENTION_BIASES = ("query", "key", "value", "output")


def read_config(values: Mapping[str, Any]) -> BackboneConfig:
    """Reads transformers' LlamaConfig; keys that a file leaves out are as in Llama 7B."""
    attention_biases = ATTENTION_BIASES if values.get("attention_bias") else ()
    mlp_biases = ("mlp",) if values.get("mlp_bias") else ()
    return read_decoder(values, (*attention_biases, *mlp_biases))


def write_config(config: BackboneConfig) -> dict[str, Any]:
    """Writes transformers' LlamaConfig."""
    biases = {"attention_bias": "query" in config.biases, "mlp_bias": "mlp" in config.biases}
    values = {**write_decoder(config), "head_dim": config.head_width, **biases}
    require_round_trip(config, read_config(values))
    return values


PUBLISHED = (
    PublishedArchitecture(
        name="LlamaForCausalLM",
        model_types=("llama",),
        config_type=BackboneConfig,
        read_config=read_config,
        write_config=write_config,
        rules=decoder_rules,
        ignored=ignored_buffers,
        duplicates=tied_head_duplicates,
    ),
)
