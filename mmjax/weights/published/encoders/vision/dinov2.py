"""DINOv2 (arXiv 2304.07193), `Dinov2Model` of transformers, and `Dinov2WithRegistersModel` (arXiv 2309.16588).

Both differ in how they resize the position table: with registers it is antialiased.
"""

import functools
from collections.abc import Iterator, Mapping
from typing import Any

from configs.architectures import VisionConfig
from configs.transformer import PROJECTIONS
from mmjax.weights.published.encoders.shared.vision_transformer import (
    IMAGENET_PIXELS,
    VIT_BASE_DEFAULTS,
    block_rules,
    class_token_rule,
    patch_embedding_rules,
    position_table_rule,
    read_encoder,
    read_layer_scale,
    register_rules,
    require_encoder_round_trip,
    unused_block_patterns,
    write_encoder,
)
from mmjax.weights.published.rules import PublishedArchitecture, Rule, Rules, norm_rules
from mmjax.weights.published.tensor_layouts import IDENTITY, LINEAR, Fused

BLOCK = "encoder.layer.{layer}"
NAMES = {
    "attention_norm": "norm1",
    "attention/query": "attention.attention.query",
    "attention/key": "attention.attention.key",
    "attention/value": "attention.attention.value",
    "attention/output": "attention.output.dense",
    "attention_scale": "layer_scale1.lambda1",
    "mlp_norm": "norm2",
    "mlp_scale": "layer_scale2.lambda1",
}
UNGATED = {"mlp/up": "mlp.fc1", "mlp/down": "mlp.fc2"}
GATED = {"mlp/down": "mlp.weights_out"}
"""Names in a block of the checkpoint, by the path in a block here; gate and up are one tensor."""

DEFAULTS = {
    **VIT_BASE_DEFAULTS,
    "mlp_ratio": 4,
    "patch_size": 14,
    "layer_norm_eps": 1e-6,
    "hidden_act": "gelu",
    "layerscale_value": 1.0,
    "qkv_bias": True,
    "use_swiglu_ffn": False,
    "num_register_tokens": 0,
}
REGISTER_DEFAULTS = {**DEFAULTS, "patch_size": 16, "num_register_tokens": 4}
"""Values that transformers assumes where a file leaves them out."""

SWIGLU_MULTIPLE = 8  # the width of a gated feed-forward layer is a multiple of this


def rules(config: VisionConfig) -> Rules:
    """Rules of the encoder."""
    encoder = (
        *patch_embedding_rules("embeddings.patch_embeddings.projection", config),
        class_token_rule("embeddings.cls_token", config, leading=(1, 1)),
        *register_rules("embeddings.register_tokens", config),
        position_table_rule("embeddings.position_embeddings", config, leading=(1,)),
        *block_rules(BLOCK, {**NAMES, **(GATED if config.gated else UNGATED)}, config),
        *(_gate_and_up_rules() if config.gated else ()),
        *(norm_rules("layernorm", "norm/norm", bias=True) if config.final_norm else ()),
    )
    return {config.name: encoder}


def _gate_and_up_rules() -> Iterator[Rule]:
    layouts = (("weight", "kernel", LINEAR), ("bias", "bias", IDENTITY))
    for tensor, parameter, layout in layouts:
        paths = tuple(f"blocks/mlp/{projection}/{parameter}" for projection in ("gate", "up"))
        yield Rule(f"{BLOCK}.mlp.weights_in.{tensor}", paths, Fused(part_layout=layout))


def read_config(
    values: Mapping[str, Any], defaults: Mapping[str, Any] = DEFAULTS, interpolation: str = "bicubic"
) -> VisionConfig:
    """Reads transformers' Dinov2Config or Dinov2WithRegistersConfig.

    Raises:
        ValueError: A key has a value that cannot be computed.
    """
    values = {**defaults, **values}
    gated = values["use_swiglu_ffn"]
    sized = {**values, "intermediate_size": _ffn(values["hidden_size"], values["mlp_ratio"], gated)}
    return read_encoder(
        {**sized, "hidden_act": "silu"} if gated else sized,
        IMAGENET_PIXELS,
        class_token=True,
        registers=values["num_register_tokens"],
        interpolation=interpolation,
        biases=PROJECTIONS if values["qkv_bias"] else ("output", "mlp"),
        gated=gated,
        layer_scale=read_layer_scale("layerscale_value", values["layerscale_value"]),
    )


def _ffn(width: int, ratio: int | float, gated: bool) -> int:
    """Returns the width of the feed-forward layer; two thirds of it, rounded up to a multiple of 8, for a gated one."""
    ffn = int(width * ratio)
    return ffn if not gated else -(-int(ffn * 2 / 3) // SWIGLU_MULTIPLE) * SWIGLU_MULTIPLE


def _mlp_ratio(config: VisionConfig) -> int:
    """Returns the whole-number ratio for config.json; the round trip finds a ratio that gives another width."""
    return max(1, round(config.ffn * (3 / 2 if config.gated else 1) / config.width))


def write_config(
    config: VisionConfig, defaults: Mapping[str, Any] = DEFAULTS, interpolation: str = "bicubic"
) -> dict[str, Any]:
    """Writes transformers' Dinov2Config or Dinov2WithRegistersConfig."""
    values = write_encoder(config)
    del values["intermediate_size"]
    if config.gated:
        del values["hidden_act"]  # it is always SiLU
    values |= {
        "mlp_ratio": _mlp_ratio(config),
        "use_swiglu_ffn": config.gated,
        "qkv_bias": "query" in config.biases,
        "layerscale_value": config.layer_scale or 1.0,
    }
    if defaults["num_register_tokens"]:
        values["num_register_tokens"] = config.registers
    require_encoder_round_trip(config, read_config(values, defaults, interpolation))
    return values


def ignored(config: VisionConfig) -> tuple[str, ...]:
    """The mask token of pretraining, a classifier, and unused blocks."""
    final_norm = () if config.final_norm else ("layernorm.*",)
    return ("embeddings.mask_token", "classifier.*", *final_norm, *unused_block_patterns(BLOCK, config))


def _published(name: str, model_type: str, defaults: Mapping[str, Any], interpolation: str) -> PublishedArchitecture:
    options = {"defaults": defaults, "interpolation": interpolation}
    return PublishedArchitecture(
        name=name,
        model_types=(model_type,),
        config_type=VisionConfig,
        read_config=functools.partial(read_config, **options),
        write_config=functools.partial(write_config, **options),
        rules=rules,
        ignored=ignored,
        aliases=((f"{model_type}.", ""),),
    )


PUBLISHED = (
    _published("Dinov2Model", "dinov2", DEFAULTS, "bicubic"),
    _published("Dinov2WithRegistersModel", "dinov2_with_registers", REGISTER_DEFAULTS, "bicubic_antialiased"),
)
