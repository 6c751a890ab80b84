"""Phi-3 (arXiv 2404.14219) and Phi-4 (2412.08905), `Phi3ForCausalLM`: Llama's blocks with fused projections.

Phi-4-mini (2503.01743) rotates only some channels of every head. Models for long texts have LongRoPE;
`LongRopeScaling.long` is not in config.json, which is read for texts of up to the original positions.
"""

import dataclasses
from typing import Any

from configs.architectures import BackboneConfig
from configs.attention.rope import LongRopeScaling
from mmjax.weights.published.decoders.shared.attention_types import uniform_attention
from mmjax.weights.published.decoders.shared.llama_like import (
    BLOCK,
    SILU,
    SIZES,
    TYING_AND_EPSILON,
    decoder_architecture,
    embedding_and_head_rules,
    read_heads,
)
from mmjax.weights.published.decoders.shared.rope_config import (
    read_partial_rotary_fields,
    write_rotary,
    write_rotated_part,
)
from mmjax.weights.published.key_table import Keys, Unsupported, Values
from mmjax.weights.published.rules import Rules, fused_rules, linear_rules
from mmjax.weights.published.tensor_layouts import LINEAR

EARLIER_NAMES = ("su", "yarn")
"""Name of LongRoPE in files of earlier versions of transformers; no Phi has YaRN."""


def rules(config: BackboneConfig) -> Rules:
    """Rules of the backbone."""
    matrices = (
        *fused_rules(f"{BLOCK}.self_attn.qkv_proj", "blocks/attention", ("query", "key", "value"), bias=False),
        *fused_rules(f"{BLOCK}.mlp.gate_up_proj", "blocks/mlp", ("gate", "up"), bias=False),
        *linear_rules(f"{BLOCK}.self_attn.o_proj", "blocks/attention/output", LINEAR, bias=False),
        *linear_rules(f"{BLOCK}.mlp.down_proj", "blocks/mlp/down", LINEAR, bias=False),
    )
    return {config.name: (*embedding_and_head_rules(config), *matrices)}


def prepare(values: Values) -> Values:
    """Completes a config.json, with the present name of LongRoPE."""
    values = {"rms_norm_eps": 1e-5, **values}
    for name in ("rope_parameters", "rope_scaling"):
        kind = (values.get(name) or {}).get("rope_type") or (values.get(name) or {}).get("type")
        if kind in EARLIER_NAMES:
            values = {**values, name: {**values[name], "rope_type": "longrope"}}
    return values


def write_positions(config: BackboneConfig) -> dict[str, Any]:
    """Writes the numbers of positions from which LongRoPE is computed."""
    scaling = config.rope_scaling
    if not isinstance(scaling, LongRopeScaling):
        return {}
    original = scaling.original_positions
    return {
        "original_max_position_embeddings": original,
        "max_position_embeddings": round(scaling.factor * original),
    }


def for_short_texts(config: BackboneConfig) -> BackboneConfig:
    """Returns the configuration that config.json describes, for texts of up to the original positions."""
    if not isinstance(config.rope_scaling, LongRopeScaling):
        return config
    return dataclasses.replace(config, rope_scaling=dataclasses.replace(config.rope_scaling, long=False))


KEYS = (
    Keys(read_heads),  # whose width is not written
    *SIZES[1:],
    Unsupported("attention_bias", ", but Phi-3's projections have none"),
    SILU,
    Keys(read_partial_rotary_fields, write_rotary),
    *TYING_AND_EPSILON,
    uniform_attention("Phi-3"),
    Keys(write=write_rotated_part),
    Keys(write=lambda _: {"pad_token_id": None}),  # by default an id above small vocabularies
    Keys(write=write_positions),
)

PUBLISHED = (
    decoder_architecture("Phi3ForCausalLM", "phi3", KEYS, prepare=prepare, as_written=for_short_texts, rules=rules),
)
