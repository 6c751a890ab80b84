"""Qwen1.5, Qwen2 (arXiv 2407.10671) and Qwen2.5, `Qwen2ForCausalLM`: Llama's blocks with three biases."""

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

BIASES = ("query", "key", "value")


def read_config(values: Mapping[str, Any]) -> BackboneConfig:
    """Reads transformers' Qwen2Config."""
    require_full_attention(values)
    return read_decoder(values, BIASES)


def require_full_attention(values: Mapping[str, Any]) -> None:
    """Raises ValueError where attention is limited to a sliding window."""
    if values.get("use_sliding_window"):
        raise ValueError("use_sliding_window is true; only attention to all earlier positions can be computed")


def write_config(config: BackboneConfig) -> dict[str, Any]:
    """Writes transformers' Qwen2Config."""
    values = {**write_decoder(config), "use_sliding_window": False}
    require_round_trip(config, read_config(values))
    return values


PUBLISHED = (
    PublishedArchitecture(
        name="Qwen2ForCausalLM",
        model_types=("qwen2",),
        config_type=BackboneConfig,
        read_config=read_config,
        write_config=write_config,
        rules=decoder_rules,
        ignored=ignored_buffers,
        duplicates=tied_head_duplicates,
    ),
)
