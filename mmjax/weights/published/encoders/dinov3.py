"""DINOv3's vision transformers (arXiv 2508.10104), `DINOv3ViTModel` of transformers.

Patches have no embedded positions: queries and keys rotate by where a patch is in its image, from -1 to 1.
"""

from collections.abc import Mapping
from typing import Any

from configs.architectures import VisionConfig
from configs.vision_rope import VisionRope
from mmjax.weights.published.encoders.vision_transformer import (
    IMAGENET_PIXELS,
    VIT_BASE_DEFAULTS,
    block_rules,
    class_token_rule,
    patch_embedding_rules,
    read_encoder,
    read_layer_scale,
    register_rules,
    require_encoder_round_trip,
    unused_block_patterns,
    write_encoder,
)
from mmjax.weights.published.rules import PublishedArchitecture, Rules, norm_rules

BLOCK = "layer.{layer}"
NAMES = {
    "attention_norm": "norm1",
    "attention/query": "attention.q_proj",
    "attention/key": "attention.k_proj",
    "attention/value": "attention.v_proj",
    "attention/output": "attention.o_proj",
    "attention_scale": "layer_scale1.lambda1",
    "mlp_norm": "norm2",
    "mlp/up": "mlp.up_proj",
    "mlp/down": "mlp.down_proj",
    "mlp_scale": "layer_scale2.lambda1",
}
GATE = {"mlp/gate": "mlp.gate_proj"}
"""Names in a block of the checkpoint, by the path in a block here."""

DEFAULTS = {
    **VIT_BASE_DEFAULTS,
    "hidden_size": 384,
    "num_attention_heads": 6,
    "intermediate_size": 1536,
    "layer_norm_eps": 1e-5,
    "hidden_act": "gelu",
    "layerscale_value": 1.0,
    "num_register_tokens": 0,
    "rope_theta": 100.0,
    "use_gated_mlp": False,
    "query_bias": True,
    "key_bias": False,
    "value_bias": True,
    "proj_bias": True,
    "mlp_bias": True,
}
"""Values that transformers assumes where a file leaves them out."""

BIAS_KEYS = {
    "query": "query_bias",
    "key": "key_bias",
    "value": "value_bias",
    "output": "proj_bias",
    "mlp": "mlp_bias",
}
"""Keys of config.json by the name of a bias in `TransformerConfig.biases`."""


def rules(config: VisionConfig) -> Rules:
    """Rules of the encoder."""
    encoder = (
        *patch_embedding_rules("embeddings.patch_embeddings", config),
        class_token_rule("embeddings.cls_token", config, leading=(1, 1)),
        *register_rules("embeddings.register_tokens", config),
        *block_rules(BLOCK, {**NAMES, **(GATE if config.gated else {})}, config),
        *(norm_rules("norm", "norm/norm", bias=True) if config.final_norm else ()),
    )
    return {config.name: encoder}


def read_config(values: Mapping[str, Any]) -> VisionConfig:
    """Reads transformers' DINOv3ViTConfig.

    Raises:
        ValueError: A key has a value that cannot be computed.
    """
    values = {**DEFAULTS, **values}
    return read_encoder(
        values,
        IMAGENET_PIXELS,
        class_token=True,
        registers=values["num_register_tokens"],
        positions="none",
        rope=VisionRope(float(values["rope_theta"]), coordinates="centred"),
        biases=tuple(name for name, key in BIAS_KEYS.items() if values[key]),
        gated=values["use_gated_mlp"],
        layer_scale=read_layer_scale("layerscale_value", values["layerscale_value"]),
    )


def write_config(config: VisionConfig) -> dict[str, Any]:
    """Writes transformers' DINOv3ViTConfig."""
    values = {
        **write_encoder(config),
        **{key: name in config.biases for name, key in BIAS_KEYS.items()},
        "layerscale_value": config.layer_scale or DEFAULTS["layerscale_value"],
        "num_register_tokens": config.registers,
        "rope_theta": config.rope.base if config.rope else DEFAULTS["rope_theta"],
        "use_gated_mlp": config.gated,
    }
    require_encoder_round_trip(config, read_config(values))
    return values


def ignored(config: VisionConfig) -> tuple[str, ...]:
    """The mask token of pretraining, registers where there are none, and unused blocks."""
    final_norm = () if config.final_norm else ("norm.*",)
    tokens = ("embeddings.mask_token", "embeddings.register_tokens")
    return (*tokens, *final_norm, *unused_block_patterns(BLOCK, config))


PUBLISHED = (
    PublishedArchitecture(
        name="DINOv3ViTModel",
        model_types=("dinov3_vit",),
        config_type=VisionConfig,
        read_config=read_config,
        write_config=write_config,
        rules=rules,
        ignored=ignored,
        aliases=(("model.layer.", "layer."),),
    ),
)
