"""OLMo 3 (arXiv 2512.13961), `Olmo3ForCausalLM`: OLMo 2's blocks, three of four with attention to a window.

Only global layers have scaled rotary positions.
"""

from collections.abc import Mapping
from typing import Any

from configs.architectures import BackboneConfig
from mmjax.weights.published.decoders.dense.olmo2 import ATTENTION_BIASES
from mmjax.weights.published.decoders.shared.attention_types import read_attention_types, write_attention_types
from mmjax.weights.published.decoders.shared.llama_like import (
    decoder_rules,
    ignored_buffers,
    read_decoder,
    tied_head_duplicates,
    write_decoder,
)
from mmjax.weights.published.decoders.shared.rope_config import read_local_base, read_local_rotary, read_rotary
from mmjax.weights.published.rules import PublishedArchitecture, require_round_trip

THREE_LOCAL = ("sliding_attention",) * 3 + ("full_attention",)
DEFAULTS = {"rms_norm_eps": 1e-5, "rope_theta": 5e5, "sliding_window": 4096}


def read_config(values: Mapping[str, Any]) -> BackboneConfig:
    """Reads transformers' Olmo3Config; files before its version 5 scale the rotary positions of global layers alone."""
    values, local = read_local_rotary({**DEFAULTS, **values})
    kinds = read_attention_types(values, THREE_LOCAL)
    if kinds:
        kinds["local_rope_base"] = read_local_base(values, local or {"rope_theta": read_rotary(values)[0]})
    biases = ATTENTION_BIASES if values.get("attention_bias") else ()
    return read_decoder(values, biases, norms="after", qk_norm="width", **kinds)


def write_config(config: BackboneConfig) -> dict[str, Any]:
    """Writes transformers' Olmo3Config, with the rotary positions of each kind of layer apart."""
    decoder = write_decoder(config)
    rotary = {"rope_theta": decoder.pop("rope_theta"), **decoder.pop("rope_scaling", {"rope_type": "default"})}
    local = {"rope_type": "default", "rope_theta": config.local_rope_base} if config.local_rope_base else rotary
    values = {
        **decoder,
        **write_attention_types(config),
        "rope_parameters": {"full_attention": rotary, "sliding_attention": local},
        "attention_bias": "query" in config.biases,
    }
    require_round_trip(config, read_config(values))
    return values


PUBLISHED = (
    PublishedArchitecture(
        name="Olmo3ForCausalLM",
        model_types=("olmo3",),
        config_type=BackboneConfig,
        read_config=read_config,
        write_config=write_config,
        rules=decoder_rules,
        ignored=ignored_buffers,
        duplicates=tied_head_duplicates,
    ),
)
