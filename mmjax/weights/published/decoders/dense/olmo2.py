"""OLMo 2 (arXiv 2501.00656), `Olmo2ForCausalLM`: norms after the layers, and of all queries and all keys."""

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
    """Reads transformers' Olmo2Config."""
    biases = ATTENTION_BIASES if values.get("attention_bias") else ()
    return read_decoder({"rms_norm_eps": 1e-5, **values}, biases, norms="after", qk_norm="width")


def write_config(config: BackboneConfig) -> dict[str, Any]:
    """Writes transformers' Olmo2Config."""
    values = {**write_decoder(config), "attention_bias": "query" in config.biases}
    require_round_trip(config, read_config(values))
    return values


PUBLISHED = (
    PublishedArchitecture(
        name="Olmo2ForCausalLM",
        model_types=("olmo2",),
        config_type=BackboneConfig,
        read_config=read_config,
        write_config=write_config,
        rules=decoder_rules,
        ignored=ignored_buffers,
        duplicates=tied_head_duplicates,
    ),
)
