"""Llama (arXiv 2302.13971; 2407.21783), as `LlamaForCausalLM` of transformers names it."""

from collections.abc import Mapping
from typing import Any

from configs.architectures import BackboneConfig
from mmjax.models.published.layouts import LINEAR
from mmjax.models.published.rules import Published, Rule, Rules, linear, norm

BLOCK = "model.layers.{layer}"


def rules(config: BackboneConfig) -> Rules:
    """The backbone's."""
    attention = [
        linear(f"{BLOCK}.self_attn.{theirs}_proj", f"blocks/attention/{ours}", LINEAR, bias=False)
        for theirs, ours in (("q", "query"), ("k", "key"), ("v", "value"), ("o", "output"))
    ]
    mlp = [
        linear(f"{BLOCK}.mlp.{name}_proj", f"blocks/mlp/{name}", LINEAR, bias=False) for name in ("gate", "up", "down")
    ]
    head = () if config.tie_embeddings else (Rule("lm_head.weight", "head/embedding"),)
    found = (
        Rule("model.embed_tokens.weight", "embed/embedding"),
        *(rule for each in attention + mlp for rule in each),
        *norm(f"{BLOCK}.input_layernorm", "blocks/attention_norm", bias=False),
        *norm(f"{BLOCK}.post_attention_layernorm", "blocks/mlp_norm", bias=False),
        *norm("model.norm", "head/norm", bias=False),
        *head,
    )
    return {config.name: found}


def read_config(values: Mapping[str, Any]) -> BackboneConfig:
    """Of transformers' LlamaConfig; what a file leaves out is as in Llama 7B."""
    heads = values["num_attention_heads"]
    head_width = values.get("head_dim") or values["hidden_size"] // heads
    if head_width * heads != values["hidden_size"]:
        raise ValueError(f"head_dim is {head_width}; only hidden_size / num_attention_heads can be computed")
    for key in ("attention_bias", "mlp_bias"):
        if values.get(key):
            raise ValueError(f"{key} is {values[key]!r}; only false can be computed")
    if values.get("hidden_act", "silu") != "silu":
        raise ValueError(f"hidden_act is {values['hidden_act']!r}; only 'silu' can be computed")
    return BackboneConfig(
        vocabulary=values["vocab_size"],
        width=values["hidden_size"],
        depth=values["num_hidden_layers"],
        heads=heads,
        kv_heads=values.get("num_key_value_heads") or heads,
        ffn=values["intermediate_size"],
        rope_base=rope_base(values),
        tie_embeddings=bool(values.get("tie_word_embeddings", False)),
        norm_epsilon=float(values.get("rms_norm_eps", 1e-6)),
    )


def rope_base(values: Mapping[str, Any]) -> float:
    """The base of the rotary frequencies: `rope_theta`, in newer files within `rope_parameters`."""
    parameters = values.get("rope_parameters") or values.get("rope_scaling") or {}
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind != "default":
        raise ValueError(f"rope_parameters are of type {kind!r}; only 'default' can be computed")
    return float(parameters.get("rope_theta") or values.get("rope_theta") or 10000.0)


def write_config(config: BackboneConfig) -> dict[str, Any]:
    """For transformers' LlamaConfig."""
    if not config.gated:
        raise ValueError("gated is False; Llama's feed-forward layer is gated")
    return {
        "vocab_size": config.vocabulary,
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_width,
        "intermediate_size": config.ffn,
        "hidden_act": "silu",
        "rope_theta": config.rope_base,
        "tie_word_embeddings": config.tie_embeddings,
        "rms_norm_eps": config.norm_epsilon,
    }


def ignored(config: BackboneConfig) -> tuple[str, ...]:
    """Buffers of old files, and the head that some write although it is the embedding."""
    tied = ("lm_head.weight",) if config.tie_embeddings else ()
    return ("*.rotary_emb.inv_freq", *tied)


PUBLISHED = (Published("LlamaForCausalLM", ("llama",), BackboneConfig, read_config, write_config, rules, ignored),)
