"""Attention of Llama 4's text models: to chunks, and in some layers to the whole text without positions."""

from collections.abc import Mapping
from typing import Any

from configs.attention.attention_kinds import AttentionKind, AttentionTemperature
from configs.modules.backbone import BackboneConfig
from mmjax.weights.published.channel_orders import InterleavedRotary
from mmjax.weights.published.decoders.shared.attention_types import shortest_pattern
from mmjax.weights.published.decoders.shared.llama_like import BLOCK
from mmjax.weights.published.rules import Rule
from mmjax.weights.published.tensor_layouts import LINEAR

DEFAULTS = {
    "no_rope_layer_interval": 4,
    "attention_chunk_size": 8192,
    "attn_temperature_tuning": True,
    "floor_scale": 8192,
    "attn_scale": 0.1,
    "use_qk_norm": True,
}
"""Values that transformers assumes where a file leaves them out."""

_KINDS: dict[tuple[str, bool], AttentionKind] = {
    ("chunked_attention", True): "chunked",
    ("full_attention", True): "global",
    ("full_attention", False): "unrotated",
}
"""Kind of attention by the layer's entry in `layer_types`, and whether it rotates queries and keys."""


def llama4_attention_rules(config: BackboneConfig) -> tuple[Rule, ...]:
    """Rules of the projections of attention; pairs of neighbouring channels rotate in the tensors."""
    layouts = {
        "q_proj": ("query", InterleavedRotary(config.heads)),
        "k_proj": ("key", InterleavedRotary(config.kv_heads)),
        "v_proj": ("value", LINEAR),
        "o_proj": ("output", LINEAR),
    }
    return tuple(
        Rule(f"{BLOCK}.self_attn.{name}.weight", f"blocks/attention/{path}/kernel", layout)
        for name, (path, layout) in layouts.items()
    )


def read_llama4_attention(values: Mapping[str, Any]) -> dict[str, Any]:
    """Reads the fields of a BackboneConfig for the attention of its layers.

    Raises:
        ValueError: A key has a value that cannot be computed.
    """
    values = {**DEFAULTS, **values}
    if values.get("attention_bias"):
        raise ValueError("attention_bias is true; only projections without biases can be computed")
    kinds = _read_kinds(values)
    fields: dict[str, Any] = {
        "attention_pattern": shortest_pattern(kinds),
        "qk_norm": "rotated" if values["use_qk_norm"] else "none",
    }
    if "chunked" in kinds:
        fields["attention_chunk"] = values["attention_chunk_size"]
    if "unrotated" in kinds and values["attn_temperature_tuning"]:
        fields["attention_temperature"] = AttentionTemperature(float(values["attn_scale"]), values["floor_scale"])
    return fields


def _read_kinds(values: Mapping[str, Any]) -> list[AttentionKind]:
    depth, interval = values["num_hidden_layers"], values["no_rope_layer_interval"]
    rotated = values.get("no_rope_layers") or [(layer + 1) % interval != 0 for layer in range(depth)]
    default = "full_attention" if values["attention_chunk_size"] is None else "chunked_attention"
    types = values.get("layer_types") or [default if each else "full_attention" for each in rotated]
    for key, entries in (("no_rope_layers", rotated), ("layer_types", types)):
        if len(entries) < depth:
            raise ValueError(f"{key} has {len(entries)} entries for {depth} layers; give one for each")
    pairs = [(name, bool(each)) for name, each in zip(types, rotated, strict=False)][:depth]
    for layer, (name, each) in enumerate(pairs):
        if (name, each) not in _KINDS:
            raise ValueError(
                f"layer {layer} has {name} and {'' if each else 'no '}rotary positions; only chunked_attention with "
                "them and full_attention can be computed"
            )
    return [_KINDS[pair] for pair in pairs]


def write_llama4_attention(config: BackboneConfig) -> dict[str, Any]:
    """Writes the keys that `read_llama4_attention` reads.

    Raises:
        ValueError: A layer has attention of another kind.
    """
    pairs = {kind: pair for pair, kind in _KINDS.items()}
    kinds = [config.attention_kinds[number] for number in config.kind_of_layers]
    if "local" in kinds:
        raise ValueError(f"attention_pattern is {config.attention_pattern}; the published architecture has no windows")
    temperature = config.attention_temperature or AttentionTemperature()
    return {
        "layer_types": [pairs[kind][0] for kind in kinds],
        "no_rope_layers": [int(pairs[kind][1]) for kind in kinds],
        "attention_chunk_size": config.attention_chunk or None,
        "attn_temperature_tuning": config.attention_temperature is not None,
        "attn_scale": temperature.scale,
        "floor_scale": temperature.positions,
        "use_qk_norm": config.qk_norm == "rotated",
        "attention_bias": False,
    }
