"""InternViT (arXiv 2312.14238): its authors' `InternVisionModel`, and transformers' `InternVLVisionModel`.

The 6B model has RMSNorms, norms of queries and keys over the whole width, and no biases of queries, keys and values;
the 300M model has LayerNorms with biases. Both have layer scales and no norm after the last block.
"""

from collections.abc import Mapping
from typing import Any

from configs.architectures import VisionConfig
from configs.transformer import PROJECTIONS
from mmjax.weights.published.encoders.shared.vision_transformer import (
    IMAGENET_PIXELS,
    VIT_BASE_DEFAULTS,
    block_rules,
    class_token_rule,
    norm_bias,
    patch_embedding_rules,
    position_table_rule,
    read_encoder,
    require_encoder_round_trip,
    unused_block_patterns,
    write_encoder,
)
from mmjax.weights.published.rules import PublishedArchitecture, Rule, Rules, norm_rules
from mmjax.weights.published.tensor_layouts import IDENTITY, Fused

ORIGINAL_BLOCK, BLOCK = "encoder.layers.{layer}", "encoder.layer.{layer}"
NORMS = {"layer_norm": "layernorm", "rms_norm": "rmsnorm"}
QUERY_KEY_VALUE = ("query", "key", "value")
QK_NORMS = ("attention/query_norm", "attention/key_norm")

# Names in a block of the checkpoint, by the path in a block here.
ORIGINAL_NAMES = {
    "attention_norm": "norm1",
    "attention/output": "attn.proj",
    "attention/query_norm": "attn.q_norm",
    "attention/key_norm": "attn.k_norm",
    "attention_scale": "ls1",
    "mlp_norm": "norm2",
    "mlp/up": "mlp.fc1",
    "mlp/down": "mlp.fc2",
    "mlp_scale": "ls2",
}
NAMES = {
    "attention_norm": "layernorm_before",
    "attention/query": "attention.q_proj",
    "attention/key": "attention.k_proj",
    "attention/value": "attention.v_proj",
    "attention/output": "attention.projection_layer",
    "attention/query_norm": "attention.q_norm",
    "attention/key_norm": "attention.k_norm",
    "attention_scale": "lambda_1",
    "mlp_norm": "layernorm_after",
    "mlp/up": "mlp.fc1",
    "mlp/down": "mlp.fc2",
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

_TRANSFORMERS_KEYS = {
    "qkv_bias": "attention_bias",
    "qk_normalization": "use_qk_norm",
    "initializer_factor": "layer_scale_init_value",
}
"""Keys of transformers by the authors' keys with the same meaning."""


def original_rules(config: VisionConfig) -> Rules:
    """Rules of the encoder by the authors' names; queries, keys and values are one tensor."""
    attention = f"{ORIGINAL_BLOCK}.attn.qkv"
    kernels, biases = (
        tuple(f"blocks/attention/{name}/{parameter}" for name in QUERY_KEY_VALUE) for parameter in ("kernel", "bias")
    )
    bias = (Rule(f"{attention}.bias", biases, Fused(part_layout=IDENTITY)),) if "query" in config.biases else ()
    encoder = (
        *patch_embedding_rules("embeddings.patch_embedding", config),
        class_token_rule("embeddings.class_embedding", config, leading=(1, 1)),
        position_table_rule("embeddings.position_embedding", config, leading=(1,)),
        Rule(f"{attention}.weight", kernels, Fused()),
        *bias,
        *block_rules(ORIGINAL_BLOCK, _block_names(ORIGINAL_NAMES, config), config),
    )
    return {config.name: encoder}


def rules(config: VisionConfig) -> Rules:
    """Rules of the encoder by transformers' names."""
    encoder = (
        *patch_embedding_rules("embeddings.patch_embeddings.projection", config),
        class_token_rule("embeddings.cls_token", config, leading=(1, 1)),
        position_table_rule("embeddings.position_embeddings", config, leading=(1,)),
        *block_rules(BLOCK, _block_names(NAMES, config), config),
        *(norm_rules("layernorm", "norm/norm", norm_bias(config)) if config.final_norm else ()),
    )
    return {config.name: encoder}


def _block_names(names: Mapping[str, str], config: VisionConfig) -> dict[str, str]:
    """Returns the names of the layers that a block has."""
    return {path: name for path, name in names.items() if config.qk_norm != "none" or path not in QK_NORMS}


def read_original(values: Mapping[str, Any]) -> VisionConfig:
    """Reads the authors' InternVisionConfig."""
    values = {**ORIGINAL_DEFAULTS, **values}
    renamed = {key: values[original] for original, key in _TRANSFORMERS_KEYS.items()}
    return _read({**values, **renamed}, final_norm=False)


def read_config(values: Mapping[str, Any]) -> VisionConfig:
    """Reads transformers' InternVLVisionConfig.

    Raises:
        ValueError: A key has a value that cannot be computed.
    """
    values = {**DEFAULTS, **values}
    for key in ("image_size", "patch_size"):
        sides = values[key] if isinstance(values[key], list | tuple) else [values[key]]
        if len(set(sides)) > 1:
            raise ValueError(f"{key} is {values[key]!r}; only a square can be computed")
        values[key] = sides[0]
    if not values["use_absolute_position_embeddings"]:
        raise ValueError("use_absolute_position_embeddings is false; only learned positions can be computed")
    if values["use_qk_norm"] and values["layer_norm_eps"] != 1e-6:
        raise ValueError(
            f"layer_norm_eps is {values['layer_norm_eps']}, and the epsilon of the norms of queries and keys is always "
            "1e-6; only equal ones can be computed"
        )
    if not values["use_mean_pooling"] and values["norm_type"] != "layer_norm":
        raise ValueError("use_mean_pooling is false and norm_type 'rms_norm': the final norm is of another kind")
    return _read(values, final_norm=not values["use_mean_pooling"])


def _read(values: Mapping[str, Any], final_norm: bool) -> VisionConfig:
    """Reads the configuration that transformers' keys describe."""
    if values["norm_type"] not in NORMS:
        raise ValueError(f"norm_type is {values['norm_type']!r}; choose one of {', '.join(NORMS)}")
    if values["use_qk_norm"] and values["norm_type"] != "rms_norm":
        raise ValueError("queries and keys have RMSNorms and norm_type is 'layer_norm'; only one kind can be computed")
    if not values["layer_scale_init_value"] > 0:
        raise ValueError(f"the layer scale starts at {values['layer_scale_init_value']}; it must be above 0")
    return read_encoder(
        values,
        IMAGENET_PIXELS,
        norm=NORMS[values["norm_type"]],
        biases=PROJECTIONS if values["attention_bias"] else ("output", "mlp"),
        qk_norm="width" if values["use_qk_norm"] else "none",
        layer_scale=float(values["layer_scale_init_value"]),
        class_token=True,
        final_norm=final_norm,
    )


def write_original(config: VisionConfig) -> dict[str, Any]:
    """Writes the authors' InternVisionConfig."""
    transformers_values = _write(config)
    values = {key: value for key, value in transformers_values.items() if key not in _TRANSFORMERS_KEYS.values()}
    values |= {original: transformers_values[key] for original, key in _TRANSFORMERS_KEYS.items()}
    require_encoder_round_trip(config, read_original(values))
    return values


def write_config(config: VisionConfig) -> dict[str, Any]:
    """Writes transformers' InternVLVisionConfig."""
    values = _write(config)
    squares = {key: [values[key]] * 2 for key in ("image_size", "patch_size")}
    # Where blocks are unused, so is the norm after them, and the published models have none.
    values |= {**squares, "use_mean_pooling": not config.final_norm}
    require_encoder_round_trip(config, read_config(values))
    return values


def _write(config: VisionConfig) -> dict[str, Any]:
    """Writes the keys that `_read` reads."""
    norm_types = {norm: norm_type for norm_type, norm in NORMS.items()}
    return {
        **write_encoder(config),
        "norm_type": norm_types[config.norm],
        "attention_bias": "query" in config.biases,
        "use_qk_norm": config.qk_norm != "none",
        "layer_scale_init_value": config.layer_scale,
    }


def ignored_of_original(config: VisionConfig) -> tuple[str, ...]:
    """Unused blocks, by the authors' names."""
    return unused_block_patterns(ORIGINAL_BLOCK, config)


def ignored(config: VisionConfig) -> tuple[str, ...]:
    """The mask token of pretraining, and unused blocks."""
    final_norm = () if config.final_norm else ("layernorm.*",)
    return ("embeddings.mask_token", *final_norm, *unused_block_patterns(BLOCK, config))


ORIGINAL = PublishedArchitecture(
    name="InternVisionModel",
    model_types=("intern_vit_6b",),
    config_type=VisionConfig,
    read_config=read_original,
    write_config=write_original,
    rules=original_rules,
    ignored=ignored_of_original,
)
TRANSFORMERS = PublishedArchitecture(
    name="InternVLVisionModel",
    model_types=("internvl_vision",),
    config_type=VisionConfig,
    read_config=read_config,
    write_config=write_config,
    rules=rules,
    ignored=ignored,
)
PUBLISHED = (ORIGINAL, TRANSFORMERS)
