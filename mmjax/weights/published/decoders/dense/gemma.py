"""Gemma (arXiv 2403.08295), Gemma 2 (2408.00118) and the text models of Gemma 3 (2503.19786).

Norms scale by 1 + their parameter, token embeddings by the square root of the width, and the head is the embedding. The
later two have norms on both sides, and local and global layers. Gemma 2 limits scores and logits by soft caps; Gemma 3
norms queries and keys, and gives its local layers a rotary base of their own.
"""

import math
from collections.abc import Mapping, Sequence
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
from mmjax.weights.published.decoders.shared.rope_config import read_local_base, read_local_rotary
from mmjax.weights.published.rules import PublishedArchitecture, require_round_trip

ALTERNATING = ("sliding_attention", "full_attention")
FIVE_LOCAL = ("sliding_attention",) * 5 + ("full_attention",)
DEFAULTS = {
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
    "hidden_activation": "gelu_pytorch_tanh",
}
"""What transformers assumes where a file leaves it out, in both later generations."""

GEMMA1_DEFAULTS = {"head_dim": 256, "tie_word_embeddings": True}
GEMMA1_ACTIVATIONS = ("gelu_pytorch_tanh", "gelu")  # the latter means the former in its files
GEMMA2_SOFTCAPS = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
GEMMA3_ROTARY = {"rope_theta": 1e6, "rope_local_base_freq": 1e4}


def _require_causal_without_biases(values: Mapping[str, Any]) -> None:
    """Raises ValueError for attention that no generation of the published text models has."""
    if values.get("attention_bias"):
        raise ValueError("attention_bias is true; only projections without biases can be computed")
    if values.get("use_bidirectional_attention"):
        raise ValueError("use_bidirectional_attention is true; only causal attention to text can be computed")


def read_gemma1(values: Mapping[str, Any]) -> BackboneConfig:
    """Reads transformers' GemmaConfig, of the first generation."""
    values = {**GEMMA1_DEFAULTS, **values}
    activation = values.get("hidden_activation") or values.get("hidden_act") or GEMMA1_ACTIVATIONS[0]
    if activation not in GEMMA1_ACTIVATIONS:
        raise ValueError(f"hidden_act is {activation!r}; choose one of {', '.join(GEMMA1_ACTIVATIONS)}")
    _require_causal_without_biases(values)
    scale = math.sqrt(values["hidden_size"])
    return read_decoder(values, (), activation="gelu_tanh", norm_offset=True, embedding_scale=scale)


def write_gemma1(config: BackboneConfig) -> dict[str, Any]:
    """Writes transformers' GemmaConfig."""
    activation = {"hidden_act": GEMMA1_ACTIVATIONS[0], "hidden_activation": GEMMA1_ACTIVATIONS[0]}
    values = {**write_decoder(config), "head_dim": config.head_width, **activation}
    require_round_trip(config, read_gemma1(values))
    return values


def read_gemma(values: Mapping[str, Any], layer_types: Sequence[str], **fields: Any) -> BackboneConfig:
    """The configuration of either later generation; `fields` are those in which they differ.

    Raises:
        ValueError: A key has a value that cannot be computed.
    """
    if values["hidden_activation"] != "gelu_pytorch_tanh":
        raise ValueError(f"hidden_activation is {values['hidden_activation']!r}; only 'gelu_pytorch_tanh' is known")
    _require_causal_without_biases(values)
    return read_decoder(
        values,
        (),
        activation="gelu_tanh",
        norms="both",
        norm_offset=True,
        score_scale=float(values["query_pre_attn_scalar"]) ** -0.5,
        score_softcap=float(values.get("attn_logit_softcapping") or 0.0),
        logit_softcap=float(values.get("final_logit_softcapping") or 0.0),
        embedding_scale=math.sqrt(values["hidden_size"]),
        **read_attention_types(values, layer_types),
        **fields,
    )


def write_gemma(config: BackboneConfig) -> dict[str, Any]:
    """The keys that `read_gemma` reads."""
    decoder = {key: value for key, value in write_decoder(config).items() if key != "hidden_act"}
    return {
        **decoder,
        "head_dim": config.head_width,
        **write_attention_types(config),
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": round((config.score_scale or config.head_width**-0.5) ** -2),
        "attn_logit_softcapping": config.score_softcap or None,
        "final_logit_softcapping": config.logit_softcap or None,
    }


def read_gemma2(values: Mapping[str, Any]) -> BackboneConfig:
    """Reads transformers' Gemma2Config."""
    return read_gemma({**DEFAULTS, **GEMMA2_SOFTCAPS, **values}, ALTERNATING)


def write_gemma2(config: BackboneConfig) -> dict[str, Any]:
    """Writes transformers' Gemma2Config."""
    values = write_gemma(config)
    require_round_trip(config, read_gemma2(values))
    return values


def read_gemma3(values: Mapping[str, Any]) -> BackboneConfig:
    """Reads transformers' Gemma3TextConfig; later versions have the rotary positions of each kind of layer apart."""
    values = {**DEFAULTS, **GEMMA3_ROTARY, **values}
    values, local = read_local_rotary(values)
    local_base = read_local_base(values, local or {"rope_theta": values["rope_local_base_freq"]})
    return read_gemma(values, FIVE_LOCAL, qk_norm="head", local_rope_base=local_base)


def write_gemma3(config: BackboneConfig) -> dict[str, Any]:
    """Writes transformers' Gemma3TextConfig, with the keys of versions before 5, which later versions read too."""
    values = {**write_gemma(config), "rope_local_base_freq": config.local_rope_base or config.rope_base}
    require_round_trip(config, read_gemma3(values))
    return values


PUBLISHED = tuple(
    PublishedArchitecture(
        name=name,
        model_types=(model_type,),
        config_type=BackboneConfig,
        read_config=read_config,
        write_config=write_config,
        rules=decoder_rules,
        ignored=ignored_buffers,
        duplicates=tied_head_duplicates,
    )
    for name, model_type, read_config, write_config in (
        ("GemmaForCausalLM", "gemma", read_gemma1, write_gemma1),
        ("Gemma2ForCausalLM", "gemma2", read_gemma2, write_gemma2),
        ("Gemma3ForCausalLM", "gemma3_text", read_gemma3, write_gemma3),
    )
)
