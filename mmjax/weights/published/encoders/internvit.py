"""InternViT (arXiv 2312.14238), as its authors' `InternVisionModel` names it and as transformers does.

The 6B model has RMSNorms, queries and keys normed over the whole width, and no biases in front of attention; the 300M
model has LayerNorms with biases. Both scale what every block adds, and end without a norm.
"""

from collections.abc import Mapping
from typing import Any

from configs.architectures import VisionConfig
from configs.transformer import PROJECTIONS
from mmjax.weights.published.encoders.vision_transformer import (
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

# By the path in our block, their name.
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
"""What the authors' files, and transformers, take where config.json says nothing."""

_KEYS = {
    "qkv_bias": "attention_bias",
    "qk_normalization": "use_qk_norm",
    "initializer_factor": "layer_scale_init_value",
}
"""Keys of the authors and of transformers for the same."""


def original_rules(config: VisionConfig) -> Rules:
    """The encoder's by the authors' names; queries, keys and values are one tensor."""
    attention = f"{ORIGINAL_BLOCK}.attn.qkv"
    kernels, biases = (tuple(f"blocks/attention/{name}/{of}" for name in QUERY_KEY_VALUE) for of in ("kernel", "bias"))
    bias = (Rule(f"{attention}.bias", biases, Fused(part_layout=IDENTITY)),) if "query" in config.biases else ()
    found = (
        *patch_embedding_rules("embeddings.patch_embedding", config),
        class_token_rule("embeddings.class_embedding", config, before=(1, 1)),
        position_table_rule("embeddings.position_embedding", config, before=(1,)),
        Rule(f"{attention}.weight", kernels, Fused()),
        *bias,
        *block_rules(ORIGINAL_BLOCK, _held(ORIGINAL_NAMES, config), config),
    )
    return {config.name: found}


def rules(config: VisionConfig) -> Rules:
    """The encoder's by transformers' names."""
    found = (
        *patch_embedding_rules("embeddings.patch_embeddings.projection", config),
        class_token_rule("embeddings.cls_token", config, before=(1, 1)),
        position_table_rule("embeddings.position_embeddings", config, before=(1,)),
        *block_rules(BLOCK, _held(NAMES, config), config),
        *(norm_rules("layernorm", "norm/norm", norm_bias(config)) if config.final_norm else ()),
    )
    return {config.name: found}


def _held(names: Mapping[str, str], config: VisionConfig) -> dict[str, str]:
    """The names that a block has."""
    return {ours: theirs for ours, theirs in names.items() if config.qk_norm != "none" or ours not in QK_NORMS}


def read_original(values: Mapping[str, Any]) -> VisionConfig:
    """Of the authors' InternVisionConfig."""
    of = {**ORIGINAL_DEFAULTS, **values}
    return _read({**of, **{theirs: of[key] for key, theirs in _KEYS.items()}}, final_norm=False)


def read_config(values: Mapping[str, Any]) -> VisionConfig:
    """Of transformers' InternVLVisionConfig.

    Raises:
        ValueError: It asks for what can't be computed, named by its key.
    """
    of = {**DEFAULTS, **values}
    for key in ("image_size", "patch_size"):
        sides = of[key] if isinstance(of[key], list | tuple) else [of[key]]
        if len(set(sides)) > 1:
            raise ValueError(f"{key} is {of[key]!r}; only a square can be computed")
        of[key] = sides[0]
    if not of["use_absolute_position_embeddings"]:
        raise ValueError("use_absolute_position_embeddings is false; only learned positions can be computed")
    if of["use_qk_norm"] and of["layer_norm_eps"] != 1e-6:
        raise ValueError(
            f"layer_norm_eps is {of['layer_norm_eps']}, but that of queries and keys is 1e-6; both have to be one"
        )
    if not of["use_mean_pooling"] and of["norm_type"] != "layer_norm":
        raise ValueError("use_mean_pooling is false and norm_type 'rms_norm': its last norm is of another kind")
    return _read(of, final_norm=not of["use_mean_pooling"])


def _read(of: Mapping[str, Any], final_norm: bool) -> VisionConfig:
    """Of transformers' keys, whatever file they are from."""
    if of["norm_type"] not in NORMS:
        raise ValueError(f"norm_type is {of['norm_type']!r}; choose one of {', '.join(NORMS)}")
    if of["use_qk_norm"] and of["norm_type"] != "rms_norm":
        raise ValueError("queries and keys have RMSNorms and norm_type is 'layer_norm'; both have to be one")
    if not of["layer_scale_init_value"] > 0:
        raise ValueError(f"the layer scale starts at {of['layer_scale_init_value']}; it must be above 0")
    return read_encoder(
        of,
        IMAGENET_PIXELS,
        norm=NORMS[of["norm_type"]],
        biases=PROJECTIONS if of["attention_bias"] else ("output", "mlp"),
        qk_norm="width" if of["use_qk_norm"] else "none",
        layer_scale=float(of["layer_scale_init_value"]),
        class_token=True,
        final_norm=final_norm,
    )


def write_original(config: VisionConfig) -> dict[str, Any]:
    """For the authors' InternVisionConfig."""
    values = _write(config)
    told = {**values, **{key: values[theirs] for key, theirs in _KEYS.items()}}
    values = {key: value for key, value in told.items() if key not in _KEYS.values()}
    require_encoder_round_trip(config, read_original(values))
    return values


def write_config(config: VisionConfig) -> dict[str, Any]:
    """For transformers' InternVLVisionConfig."""
    values = _write(config)
    squares = {key: [values[key]] * 2 for key in ("image_size", "patch_size")}
    # Where blocks are left out so is the norm behind them, and the published models have none.
    values |= {**squares, "use_mean_pooling": not config.final_norm}
    require_encoder_round_trip(config, read_config(values))
    return values


def _write(config: VisionConfig) -> dict[str, Any]:
    called = {ours: theirs for theirs, ours in NORMS.items()}
    return {
        **write_encoder(config),
        "norm_type": called[config.norm],
        "attention_bias": "query" in config.biases,
        "use_qk_norm": config.qk_norm != "none",
        "layer_scale_init_value": config.layer_scale,
    }


def ignored_originals(config: VisionConfig) -> tuple[str, ...]:
    """The blocks that we leave out."""
    return unused_block_patterns(ORIGINAL_BLOCK, config)


def ignored(config: VisionConfig) -> tuple[str, ...]:
    """What hides patches, and what we leave out."""
    last = () if config.final_norm else ("layernorm.*",)
    return ("embeddings.mask_token", *last, *unused_block_patterns(BLOCK, config))


ORIGINAL = PublishedArchitecture(
    "InternVisionModel",
    ("intern_vit_6b",),
    VisionConfig,
    read_original,
    write_original,
    original_rules,
    ignored_originals,
)
TRANSFORMERS = PublishedArchitecture(
    "InternVLVisionModel", ("internvl_vision",), VisionConfig, read_config, write_config, rules, ignored
)
PUBLISHED = (ORIGINAL, TRANSFORMERS)
