"""DINOv2 (arXiv 2304.07193), `Dinov2Model` of transformers, and `Dinov2WithRegistersModel` (arXiv 2309.16588).

Both differ in how they resize the position table: with registers it is antialiased.
"""

from collections.abc import Mapping
from typing import Any

from configs.architectures import VisionConfig
from mmjax.weights.published.encoders.shared.vision_keys import (
    ACTIVATION,
    EPSILON,
    IMAGENET_PIXELS,
    SIZES,
    layer_scale,
    patches,
    query_key_value_bias,
)
from mmjax.weights.published.encoders.shared.vision_rules import (
    MLP_NAMES,
    VIT_ATTENTION_NAMES,
    block_rules,
    final_norm_rules,
    unused_patterns,
    vit_embedding_rules,
)
from mmjax.weights.published.encoders.shared.vision_transformer import VIT_BASE_DEFAULTS, encoder_architecture
from mmjax.weights.published.key_table import Entry, Fields, Fixed, Key, Keys, Values
from mmjax.weights.published.rules import PublishedArchitecture, Rules, fused_rules
from mmjax.weights.published.table_architecture import with_defaults

BLOCK = "encoder.layer.{layer}"
NAMES = {
    "attention_norm": "norm1",
    **VIT_ATTENTION_NAMES,
    "attention_scale": "layer_scale1.lambda1",
    "mlp_norm": "norm2",
    "mlp_scale": "layer_scale2.lambda1",
}
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
}
REGISTER_DEFAULTS = {**DEFAULTS, "patch_size": 16, "num_register_tokens": 4}
"""Values that transformers assumes where a file leaves them out."""

SWIGLU_MULTIPLE = 8  # the width of a gated feed-forward layer is a multiple of this


def rules(config: VisionConfig) -> Rules:
    """Rules of the encoder."""
    gate_and_up = fused_rules(f"{BLOCK}.mlp.weights_in", "blocks/mlp", ("gate", "up"), bias="mlp" in config.biases)
    encoder = (
        *vit_embedding_rules(config),
        *block_rules(BLOCK, {**NAMES, **(GATED if config.gated else MLP_NAMES)}, config),
        *(gate_and_up if config.gated else ()),
        *final_norm_rules("layernorm", config),
    )
    return {config.name: encoder}


def _read_mlp(values: Values) -> dict[str, Any]:
    """Reads the feed-forward layer: a gated one has two thirds of the width, rounded up to a multiple of 8."""
    ffn, gated = int(values["hidden_size"] * values["mlp_ratio"]), values["use_swiglu_ffn"]
    if not gated:
        return {"ffn": ffn, "gated": gated, **ACTIVATION.read(values)}
    return {"ffn": -(-int(ffn * 2 / 3) // SWIGLU_MULTIPLE) * SWIGLU_MULTIPLE, "gated": gated, "activation": "silu"}


def _write_mlp(config: VisionConfig) -> dict[str, Any]:
    """Writes the feed-forward layer with a whole-number ratio; reading back finds one that gives another width."""
    ratio = max(1, round(config.ffn * (3 / 2 if config.gated else 1) / config.width))
    activation = {} if config.gated else ACTIVATION.write(config)
    return {"mlp_ratio": ratio, "use_swiglu_ffn": config.gated, **activation}


KEYS = (
    *SIZES,
    EPSILON,
    patches(),
    IMAGENET_PIXELS,
    Keys(_read_mlp, _write_mlp),
    query_key_value_bias("qkv_bias"),
    layer_scale("layerscale_value"),
    Fields({"class_token": True}),
)


def ignored(config: VisionConfig) -> tuple[str, ...]:
    """The mask token of pretraining, a classifier, and unused blocks."""
    return ("embeddings.mask_token", "classifier.*", *unused_patterns(BLOCK, config, "layernorm"))


def _published(name: str, model_type: str, defaults: Mapping[str, Any], *keys: Entry) -> PublishedArchitecture:
    return encoder_architecture(
        name,
        (model_type,),
        (*KEYS, *keys),
        prepare=with_defaults(defaults),
        rules=rules,
        ignored=ignored,
        aliases=((f"{model_type}.", ""),),
    )


PUBLISHED = (
    _published("Dinov2Model", "dinov2", DEFAULTS, Fixed("num_register_tokens", 0)),
    _published(
        "Dinov2WithRegistersModel",
        "dinov2_with_registers",
        REGISTER_DEFAULTS,
        Key("num_register_tokens", "registers"),
        Fields({"interpolation": "bicubic_antialiased"}),
    ),
)
