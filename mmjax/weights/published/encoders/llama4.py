"""Llama 4's vision tower, `Llama4VisionModel` of transformers, up to the norm after its blocks.

The class token is the last position there and the first here; attention does not tell them apart. The adapter behind
the tower belongs to the projector (`multimodal/llama4.py`).
"""

from collections.abc import Iterator, Mapping
from typing import Any

from configs.architectures import VisionConfig
from configs.vision_rope import VisionRope
from mmjax.weights.published.channel_orders import ColumnsFirst, InterleavedRotary
from mmjax.weights.published.encoders.vision_transformer import (
    HALF_PIXELS,
    VIT_BASE_DEFAULTS,
    block_rules,
    class_token_rule,
    read_encoder,
    require_encoder_round_trip,
    unused_block_patterns,
    write_encoder,
)
from mmjax.weights.published.rules import PublishedArchitecture, Rule, Rules, norm_rules
from mmjax.weights.published.tensor_layouts import IDENTITY, LINEAR, Fused, PatchConvolution, Reshaped

BLOCK = "model.layers.{layer}"
NAMES = {
    "attention_norm": "input_layernorm",
    "attention/value": "self_attn.v_proj",
    "attention/output": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "mlp/up": "mlp.fc1",
    "mlp/down": "mlp.fc2",
}
ROTATED = {"query": "self_attn.q_proj", "key": "self_attn.k_proj"}
"""Names in a block of the checkpoint, by the path in a block here."""

DEFAULTS = {
    **VIT_BASE_DEFAULTS,
    "num_hidden_layers": 34,
    "num_attention_heads": 16,
    "intermediate_size": 5632,
    "image_size": 448,
    "patch_size": 14,
    "rope_theta": 10000.0,
}
"""Values that transformers assumes where a file leaves them out."""

FIXED = {"layer_norm_eps": 1e-5, "hidden_act": "gelu"}
"""Fields that the tower has whatever the contents of config.json."""


def rules(config: VisionConfig) -> Rules:
    """Rules of the encoder."""
    table = (Reshaped((config.grid**2, config.width)), Reshaped((1, config.width)))
    paths = ("embed/table/table", "embed/class_position")
    pixels = PatchConvolution((config.patch, config.patch), flattened=True)
    encoder = (
        Rule("patch_embedding.linear.weight", "embed/pixels/kernel", pixels),
        class_token_rule("class_embedding", config),
        Rule("positional_embedding_vlm", paths, Fused(part_layout=table)),
        *norm_rules("layernorm_pre", "embed/norm", bias=True),
        *block_rules(BLOCK, NAMES, config),
        *_rotated_rules(config),
        *(norm_rules("layernorm_post", "norm/norm", bias=True) if config.final_norm else ()),
    )
    return {config.name: encoder}


def _rotated_rules(config: VisionConfig) -> Iterator[Rule]:
    """Rules of queries and keys: pairs of neighbouring channels, the channels of columns first."""
    for name, tensor in ROTATED.items():
        for kind, parameter, layout in (("weight", "kernel", LINEAR), ("bias", "bias", IDENTITY)):
            channels = InterleavedRotary(config.heads, ColumnsFirst(config.heads, layout))
            yield Rule(f"{BLOCK}.{tensor}.{kind}", f"blocks/attention/{name}/{parameter}", channels)


def read_config(values: Mapping[str, Any]) -> VisionConfig:
    """Reads transformers' Llama4VisionConfig.

    Raises:
        ValueError: A key has a value that cannot be computed.
    """
    values = {**DEFAULTS, **values, **FIXED}
    rope = values.get("rope_parameters") or {}
    if rope.get("rope_type", "default") != "default":
        raise ValueError(f"rope_parameters.rope_type is {rope['rope_type']!r}; only 'default' can be computed")
    return read_encoder(
        values,
        HALF_PIXELS,
        class_token=True,
        patch_bias=False,
        input_norm=True,
        rope=VisionRope(float(rope.get("rope_theta", values["rope_theta"])), coordinates="number"),
    )


def write_config(config: VisionConfig) -> dict[str, Any]:
    """Writes transformers' Llama4VisionConfig, without the keys of the adapter."""
    base = config.rope.base if config.rope else DEFAULTS["rope_theta"]
    values = {**write_encoder(config), "rope_parameters": {"rope_type": "default", "rope_theta": base}}
    values["norm_eps"] = values.pop("layer_norm_eps")
    require_encoder_round_trip(config, read_config(values))
    return values


def ignored(config: VisionConfig) -> tuple[str, ...]:
    """The adapter, fixed frequencies, and unused blocks."""
    final_norm = () if config.final_norm else ("layernorm_post.*",)
    adapter = ("vision_adapter.*", "rotary_embedding.*")
    return (*adapter, *final_norm, *unused_block_patterns(BLOCK, config))


PUBLISHED = (
    PublishedArchitecture(
        name="Llama4VisionModel",
        model_types=("llama4_vision_model",),
        config_type=VisionConfig,
        read_config=read_config,
        write_config=write_config,
        rules=rules,
        ignored=ignored,
    ),
)
