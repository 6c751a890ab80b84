"""Qwen3 (arXiv 2505.09388), `Qwen3ForCausalLM`: Llama's blocks with norms of queries and keys over each head."""

from collections.abc import Mapping
from typing import Any

from configs.architectures import BackboneConfig
from mmjax.weights.published.decoders.dense.qwen2 import require_full_attention
from mmjax.weights.published.decoders.shared.llama_like import (
    decoder_rules,
    ignored_buffers,
    read_decoder,
    tied_head_duplicates,
    write_decoder,
)
from mmjax.weights.published.rules import PublishedArchitecture, require_round_trip

ATTENTION_BIASES = ("query", "key", "value", "output")
DEFAULT_HEAD_WIDTH = 128


def read_qwen3(values: Mapping[str, Any], **fields: Any) -> BackboneConfig:
    """The configuration of a decoder with Qwen3's attention; `fields` are those that its keys do not describe."""
    require_full_attention(values)
    biases = ATTENTION_BIASES if values.get("attention_bias") else ()
    return read_decoder({"head_dim": DEFAULT_HEAD_WIDTH, **values}, biases, qk_norm="head", **fields)


def write_qwen3(config: BackboneConfig) -> dict[str, Any]:
    """The keys that `read_qwen3` reads."""
    return {
        **write_decoder(config),
        "head_dim": config.head_width,
        "attention_bias": "query" in config.biases,
        "use_sliding_window": False,
    }


def read_config(values: Mapping[str, Any]) -> BackboneConfig:
    """Reads transformers' Qwen3Config."""
    return read_qwen3(values)


def write_config(config: BackboneConfig) -> dict[str, Any]:
    """Writes transformers' Qwen3Config."""
    values = write_qwen3(config)
    require_round_trip(config, read_config(values))
    return values


PUBLISHED = (
    PublishedArchitecture(
        name="Qwen3ForCausalLM",
        model_types=("qwen3",),
        config_type=BackboneConfig,
        read_config=read_config,
        write_config=write_config,
        rules=decoder_rules,
        ignored=ignored_buffers,
        duplicates=tied_head_duplicates,
    ),
)
