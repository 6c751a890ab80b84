"""GPT-2, and GPT-3's blocks (arXiv 2005.14165), `GPT2LMHeadModel`: learned positions, LayerNorm, GELU."""

from collections.abc import Mapping
from typing import Any

from configs.architectures import BackboneConfig
from configs.transformer import PROJECTIONS
from mmjax.weights.published.rules import (
    PublishedArchitecture,
    Rule,
    Rules,
    linear_rules,
    norm_rules,
    require_round_trip,
)
from mmjax.weights.published.tensor_layouts import IDENTITY, Fused

BLOCK = "transformer.h.{layer}"
QUERY_KEY_VALUE = ("query", "key", "value")
ACTIVATIONS = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu", "relu": "relu"}
REQUIRED_VALUES = {
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
    "scale_attn_weights": True,
}
"""Keys of config.json with the only value that can be computed."""


def rules(config: BackboneConfig) -> Rules:
    """Rules of the backbone; GPT-2's Conv1D is `[inputs, outputs]` like kernels here."""
    attention = f"{BLOCK}.attn.c_attn"
    backbone = (
        Rule("transformer.wte.weight", "embed/embedding"),
        Rule("transformer.wpe.weight", "embed/positions"),
        Rule(f"{attention}.weight", _query_key_value("kernel"), Fused(axis=1, part_layout=IDENTITY)),
        Rule(f"{attention}.bias", _query_key_value("bias"), Fused(axis=0, part_layout=IDENTITY)),
        *linear_rules(f"{BLOCK}.attn.c_proj", "blocks/attention/output", IDENTITY, bias=True),
        *linear_rules(f"{BLOCK}.mlp.c_fc", "blocks/mlp/up", IDENTITY, bias=True),
        *linear_rules(f"{BLOCK}.mlp.c_proj", "blocks/mlp/down", IDENTITY, bias=True),
        *norm_rules(f"{BLOCK}.ln_1", "blocks/attention_norm", bias=True),
        *norm_rules(f"{BLOCK}.ln_2", "blocks/mlp_norm", bias=True),
        *norm_rules("transformer.ln_f", "head/norm", bias=True),
        *(() if config.tie_embeddings else (Rule("lm_head.weight", "head/embedding"),)),
    )
    return {config.name: backbone}


def _query_key_value(parameter: str) -> tuple[str, ...]:
    return tuple(f"blocks/attention/{name}/{parameter}" for name in QUERY_KEY_VALUE)


def read_config(values: Mapping[str, Any]) -> BackboneConfig:
    """Reads transformers' GPT2Config.

    Raises:
        ValueError: A key has a value that cannot be computed.
    """
    for key, required in REQUIRED_VALUES.items():
        if values.get(key, required) is not required:
            raise ValueError(f"{key} is {values[key]!r}; only {required!r} can be computed")
    activation = values.get("activation_function", "gelu_new")
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation_function is {activation!r}; only {', '.join(ACTIVATIONS)} can be computed")
    width, heads = values["n_embd"], values["n_head"]
    return BackboneConfig(
        vocabulary=values["vocab_size"],
        width=width,
        depth=values["n_layer"],
        heads=heads,
        kv_heads=heads,
        ffn=values.get("n_inner") or 4 * width,
        norm="layernorm",
        norm_epsilon=float(values.get("layer_norm_epsilon", 1e-5)),
        activation=ACTIVATIONS[activation],
        gated=False,
        biases=PROJECTIONS,
        positions="learned",
        max_positions=values["n_positions"],
        tie_embeddings=bool(values.get("tie_word_embeddings", True)),
    )


def write_config(config: BackboneConfig) -> dict[str, Any]:
    """Writes transformers' GPT2Config."""
    activation_names = {activation: published for published, activation in reversed(ACTIVATIONS.items())}
    values = {
        "vocab_size": config.vocabulary,
        "n_embd": config.width,
        "n_layer": config.depth,
        "n_head": config.heads,
        "n_inner": config.ffn,
        "n_positions": config.max_positions,
        "layer_norm_epsilon": config.norm_epsilon,
        "activation_function": activation_names.get(config.activation, config.activation),
        "tie_word_embeddings": config.tie_embeddings,
    }
    require_round_trip(config, read_config(values))
    return values


def ignored(config: BackboneConfig) -> tuple[str, ...]:
    """Causal masks, which old files hold."""
    del config
    return ("transformer.h.*.attn.bias", "transformer.h.*.attn.masked_bias")


def duplicates(config: BackboneConfig) -> dict[str, str]:
    """The head, which some files hold although it is the embedding."""
    return {"lm_head.weight": "transformer.wte.weight"} if config.tie_embeddings else {}


PUBLISHED = (
    PublishedArchitecture(
        name="GPT2LMHeadModel",
        model_types=("gpt2",),
        config_type=BackboneConfig,
        read_config=read_config,
        write_config=write_config,
        rules=rules,
        ignored=ignored,
        duplicates=duplicates,
        aliases=tuple((f"{name}.", f"transformer.{name}.") for name in ("h", "wte", "wpe", "ln_f")),
    ),
)
