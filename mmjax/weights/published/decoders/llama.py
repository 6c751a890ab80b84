"""Llama (arXiv 2302.13971; 2407.21783) and Yi (2403.04652), which is one, as `LlamaForCausalLM` names them."""

from collections.abc import Mapping
from typing import Any

from configs.architectures import BackboneConfig
from mmjax.weights.published.decoders.llama_like import (
    decoder_rules,
    ignored_buffers,
    read_decoder,
    tied_head_duplicates,
    write_decoder,
)
from mmjax.weights.published.round_trip import require_round_trip
from mmjax.weights.published.rules import PublishedArchitecture

ATTENTION = ("query", "key", "value", "output")


def read_config(values: Mapping[str, Any]) -> BackboneConfig:
    """Of transformers' LlamaConfig; what a file leaves out is as in Llama 7B."""
    attention = ATTENTION if values.get("attention_bias") else ()
    return read_decoder(values, (*attention, *(("mlp",) if values.get("mlp_bias") else ())))


def write_config(config: BackboneConfig) -> dict[str, Any]:
    """For transformers' LlamaConfig."""
    biases = {"attention_bias": "query" in config.biases, "mlp_bias": "mlp" in config.biases}
    values = {**write_decoder(config), "head_dim": config.head_width, **biases}
    require_round_trip(config, read_config(values))
    return values


PUBLISHED = (
    PublishedArchitecture(
        "LlamaForCausalLM",
        ("llama",),
        BackboneConfig,
        read_config,
        write_config,
        decoder_rules,
        ignored_buffers,
        tied_head_duplicates,
    ),
)
