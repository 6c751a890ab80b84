"""InternViT (arXiv 2312.14238): its authors' `InternVisionModel`, and transformers' `InternVLVisionModel`.

The 6B model has RMSNorms, norms of queries and keys over the whole width, and no biases of queries, keys and values;
the 300M model has LayerNorms with biases. Both have layer scales and no norm after the last block.
"""

from collections.abc import Mapping
from typing import Any

from configs.architectures import VisionConfig
from mmjax.weights.published.encoders.shared.vision_keys import (
    ACTIVATION,
    EPSILON,
    FFN,
    IMAGENET_PIXELS,
    SIZES,
    layer_scale,
    patches,
    query_key_value_bias,
    square_side,
)
from mmjax.weights.published.encoders.shared.vision_rules import (
    ATTENTION_NAMES,
    MLP_NAMES,
    QUERY_KEY_VALUE,
    TIMM_NAMES,
    block_rules,
    class_token_rule,
    final_norm_rules,
    patch_embedding_rules,
    position_table_rule,
    unused_patterns,
    vit_embedding_rules,
)
from mmjax.weights.published.encoders.shared.vision_transformer import VIT_BASE_DEFAULTS, encoder_architecture
from mmjax.weights.published.key_table import Fields, Fixed, Keys, Table, Values
from mmjax.weights.published.rules import Rules, fused_rules
from mmjax.weights.published.table_architecture import with_defaults

ORIGINAL_BLOCK, BLOCK = "encoder.layers.{layer}", "encoder.layer.{layer}"
NORMS = {"layer_norm": "layernorm", "rms_norm": "rmsnorm"}
QK_NORMS = ("attention/query_norm", "attention/key_norm")
QK_NORM_EPSILON = 1e-6  # of transformers, whatever a file says

# Names in a block of the checkpoint, by the path in a block here.
ORIGINAL_NAMES = {
    **TIMM_NAMES,
    **MLP_NAMES,
    "attention/query_norm": "attn.q_norm",
    "attention/key_norm": "attn.k_norm",
    "attention_scale": "ls1",
    "mlp_scale": "ls2",
}
NAMES = {
    "attention_norm": "layernorm_before",
    **ATTENTION_NAMES,
    "attention/output": "attention.projection_layer",
    "attention/query_norm": "attention.q_norm",
    "attention/key_norm": "attention.k_norm",
    "attention_scale": "lambda_1",
    "mlp_norm": "layernorm_after",
    **MLP_NAMES,
    "mlp_scale": "lambda_2",
}

ORIGINAL_DEFAULTS = {
    **VIT_BASE_DEFAULTS,
    "hidden_size": 3200,
    "num_hidden_layers": 48,
    "num_attention_heads": 25,
    "intermediate_size": 12800,
    "patch_size": 14,
    "layer_norm_eps": 1e-6,
    "hidden_act": "gelu",
    "norm_type": "rms_norm",
    "qkv_bias": False,
    "qk_normalization": True,
    "initializer_factor": 0.1,
}
DEFAULTS = {
    **VIT_BASE_DEFAULTS,
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "image_size": 448,
    "patch_size": 14,
    "layer_norm_eps": 1e-6,
    "hidden_act": "gelu",
    "norm_type": "layer_norm",
    "attention_bias": False,
    "use_qk_norm": False,
    "layer_scale_init_value": 0.1,
    "use_mean_pooling": True,
    "use_absolute_position_embeddings": True,
}
"""Values that the authors' code and transformers assume where config.json leaves them out."""


def original_rules(config: VisionConfig) -> Rules:
    """Rules of the encoder by the authors' names; queries, keys and values are one tensor."""
    bias = "query" in config.biases
    encoder = (
        *patch_embedding_rules("embeddings.patch_embedding", config),
        class_token_rule("embeddings.class_embedding", config, leading=(1, 1)),
        position_table_rule("embeddings.position_embedding", config, leading=(1,)),
        *fused_rules(f"{ORIGINAL_BLOCK}.attn.qkv", "blocks/attention", QUERY_KEY_VALUE, bias),
        *block_rules(ORIGINAL_BLOCK, _block_names(ORIGINAL_NAMES, config), config),
    )
    return {config.name: encoder}


def rules(config: VisionConfig) -> Rules:
    """Rules of the encoder by transformers' names."""
    encoder = (
        *vit_embedding_rules(config),
        *block_rules(BLOCK, _block_names(NAMES, config), config),
        *final_norm_rules("layernorm", config),
    )
    return {config.name: encoder}


def _block_names(names: Mapping[str, str], config: VisionConfig) -> dict[str, str]:
    """Returns the names of the layers that a block has."""
    return {path: name for path, name in names.items() if config.qk_norm != "none" or path not in QK_NORMS}


def _keys(bias: str, qk_norm: str, scale: str) -> Table:
    """Keys of both formats, given the names that differ.

    Args:
        bias: Key of the biases of queries, keys and values.
        qk_norm: Key that says whether queries and keys have norms.
        scale: Key of the initial value of layer scales.
    """

    def read_norms(values: Values) -> dict[str, Any]:
        kind = values["norm_type"]
        if kind not in NORMS:
            raise ValueError(f"norm_type is {kind!r}; choose one of {', '.join(NORMS)}")
        if values[qk_norm] and kind != "rms_norm":
            raise ValueError(f"{qk_norm} is true and norm_type is {kind!r}; queries and keys have only RMSNorms")
        return {"norm": NORMS[kind], "qk_norm": "width" if values[qk_norm] else "none"}

    def write_norms(config: VisionConfig) -> dict[str, Any]:
        norm_types = {norm: norm_type for norm_type, norm in NORMS.items()}
        return {"norm_type": norm_types[config.norm], qk_norm: config.qk_norm != "none"}

    return (
        *SIZES,
        FFN,
        EPSILON,
        ACTIVATION,
        IMAGENET_PIXELS,
        Keys(read_norms, write_norms),
        query_key_value_bias(bias),
        layer_scale(scale),
        Fields({"class_token": True}),
    )


def _require_epsilon(values: Values) -> dict[str, Any]:
    if values["use_qk_norm"] and values["layer_norm_eps"] != QK_NORM_EPSILON:
        raise ValueError(
            f"layer_norm_eps is {values['layer_norm_eps']}, and the epsilon of the norms of queries and keys is always "
            f"{QK_NORM_EPSILON}; only equal ones can be computed"
        )
    return {}


def _read_final_norm(values: Values) -> dict[str, Any]:
    if not values["use_mean_pooling"] and values["norm_type"] != "layer_norm":
        raise ValueError("use_mean_pooling is false and norm_type 'rms_norm': the final norm is of another kind")
    return {"final_norm": not values["use_mean_pooling"]}


ORIGINAL_KEYS = (
    *_keys("qkv_bias", "qk_normalization", "initializer_factor"),
    patches(),
    Fields({"final_norm": False}),
)
KEYS = (
    *_keys("attention_bias", "use_qk_norm", "layer_scale_init_value"),
    patches(read_side=square_side, write_side=lambda side: [side, side]),
    Fixed("use_absolute_position_embeddings", True),
    Keys(_require_epsilon),
    # Where blocks are unused, so is the norm after them, and the published models have none.
    Keys(_read_final_norm, lambda config: {"use_mean_pooling": not config.final_norm}),
)


def ignored_of_original(config: VisionConfig) -> tuple[str, ...]:
    """Unused blocks, by the authors' names."""
    return unused_patterns(ORIGINAL_BLOCK, config)


def ignored(config: VisionConfig) -> tuple[str, ...]:
    """The mask token of pretraining, and unused blocks."""
    return ("embeddings.mask_token", *unused_patterns(BLOCK, config, "layernorm"))


ORIGINAL = encoder_architecture(
    "InternVisionModel",
    ("intern_vit_6b",),
    ORIGINAL_KEYS,
    prepare=with_defaults(ORIGINAL_DEFAULTS),
    rules=original_rules,
    ignored=ignored_of_original,
)
TRANSFORMERS = encoder_architecture(
    "InternVLVisionModel",
    ("internvl_vision",),
    KEYS,
    prepare=with_defaults(DEFAULTS),
    rules=rules,
    ignored=ignored,
)
PUBLISHED = (ORIGINAL, TRANSFORMERS)
