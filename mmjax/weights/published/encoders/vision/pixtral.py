"""Pixtral's vision tower (arXiv 2410.07073), `PixtralVisionModel` of transformers, for images of any size."""

from collections.abc import Mapping
from typing import Any

from configs.architectures import VisionConfig
from configs.vision_rope import VisionRope
from mmjax.weights.published.encoders.shared.vision_transformer import (
    CLIP_PIXELS,
    VIT_BASE_DEFAULTS,
    block_rules,
    patch_embedding_rules,
    read_encoder,
    require_encoder_round_trip,
    unused_block_patterns,
    write_encoder,
)
from mmjax.weights.published.rules import PublishedArchitecture, Rules, norm_rules

BLOCK = "transformer.layers.{layer}"
NAMES = {
    "attention_norm": "attention_norm",
    "attention/query": "attention.q_proj",
    "attention/key": "attention.k_proj",
    "attention/value": "attention.v_proj",
    "attention/output": "attention.o_proj",
    "mlp_norm": "ffn_norm",
    "mlp/gate": "feed_forward.gate_proj",
    "mlp/up": "feed_forward.up_proj",
    "mlp/down": "feed_forward.down_proj",
}
"""Names in a block of the checkpoint, by the path in a block here."""

DEFAULTS = {
    **VIT_BASE_DEFAULTS,
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "image_size": 1024,
    "hidden_act": "gelu",
    "rope_theta": 10000.0,
}
"""Values that transformers assumes where a file leaves them out."""

NORM_EPSILON = 1e-5  # of all norms; config.json does not have it
ROPE_TYPE = "axial"
ROPE_TYPES = (ROPE_TYPE, "default")  # the same rotation under two names


def rules(config: VisionConfig) -> Rules:
    """Rules of the encoder."""
    encoder = (
        *patch_embedding_rules("patch_conv", config),
        *norm_rules("ln_pre", "embed/norm", bias=False),
        *block_rules(BLOCK, NAMES, config),
    )
    return {config.name: encoder}


def read_config(values: Mapping[str, Any]) -> VisionConfig:
    """Reads transformers' PixtralVisionConfig.

    Raises:
        ValueError: A key has a value that cannot be computed.
    """
    values = {**DEFAULTS, **values, "layer_norm_eps": NORM_EPSILON}
    rope = values.get("rope_parameters") or {}
    if rope.get("rope_type", ROPE_TYPE) not in ROPE_TYPES:
        raise ValueError(f"rope_parameters.rope_type is {rope['rope_type']!r}; only {ROPE_TYPE!r} can be computed")
    head_width = values["hidden_size"] // values["num_attention_heads"]
    if values.get("head_dim", head_width) != head_width:
        raise ValueError(f"head_dim is {values['head_dim']}; only {head_width}, hidden_size by heads, can be computed")
    return read_encoder(
        values,
        CLIP_PIXELS,
        norm="rmsnorm",
        gated=True,
        biases=(),
        patch_bias=False,
        positions="none",
        rope=VisionRope(float(rope.get("rope_theta", values["rope_theta"])), frequencies="alternate"),
        input_norm=True,
        final_norm=False,
    )


def write_config(config: VisionConfig) -> dict[str, Any]:
    """Writes transformers' PixtralVisionConfig."""
    base = config.rope.base if config.rope else DEFAULTS["rope_theta"]
    rope = {"rope_type": ROPE_TYPE, "rope_theta": base}
    values = {**write_encoder(config), "head_dim": config.head_width, "rope_parameters": rope}
    del values["layer_norm_eps"]
    require_encoder_round_trip(config, read_config(values))
    return values


def ignored(config: VisionConfig) -> tuple[str, ...]:
    """Unused blocks."""
    return unused_block_patterns(BLOCK, config)


PUBLISHED = (
    PublishedArchitecture(
        name="PixtralVisionModel",
        model_types=("pixtral",),
        config_type=VisionConfig,
        read_config=read_config,
        write_config=write_config,
        rules=rules,
        ignored=ignored,
    ),
)
