"""gpt-oss (arXiv 2508.10925), `GptOssForCausalLM`: attention sinks, and experts with biases and a clamped gate.

Layers attend locally and globally by turns. All experts of a layer are in one tensor for gate and up, whose columns
alternate, and one for down. The authors' files hold them in 4 bits; what is read are the same in bfloat16 or float32.
"""

from collections.abc import Mapping
from typing import Any

from configs.architectures import BackboneConfig, ExpertsConfig, RouterConfig
from mmjax.weights.published.config_values import require_values
from mmjax.weights.published.decoders.shared.attention_types import read_attention_types, write_attention_types
from mmjax.weights.published.decoders.shared.expert_rules import (
    read_balance_weight,
    require_experts,
    write_balance_weight,
)
from mmjax.weights.published.decoders.shared.llama_like import (
    MLP,
    attention_rules,
    embedding_and_head_rules,
    ignored_buffers,
    read_decoder,
    tied_head_duplicates,
    write_decoder,
)
from mmjax.weights.published.rules import PublishedArchitecture, Rule, Rules, require_round_trip
from mmjax.weights.published.tensor_layouts import IDENTITY, LINEAR, Fused

BIASES = ("query", "key", "value", "output")
ALTERNATING = ("sliding_attention", "full_attention")
SWIGLU_ALPHA = 1.702  # that of `quick_gelu`
DEFAULTS = {"rope_theta": 150000.0, "head_dim": 64, "sliding_window": 128, "rms_norm_eps": 1e-5}
DEFAULT_SCALING = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
"""How transformers scales rotary positions where a file leaves them out."""


def rules(config: BackboneConfig) -> Rules:
    """Rules of the backbone."""
    ffn = require_experts(config).ffn
    routing = (
        Rule(f"{MLP}.router.weight", "blocks/mlp/router", LINEAR),
        Rule(f"{MLP}.router.bias", "blocks/mlp/router_bias"),
    )
    experts = (
        Rule(
            f"{MLP}.experts.gate_up_proj",
            ("blocks/mlp/gate", "blocks/mlp/up"),
            Fused(axis=2, part_layout=IDENTITY, groups=ffn),
        ),
        Rule(
            f"{MLP}.experts.gate_up_proj_bias",
            ("blocks/mlp/gate_bias", "blocks/mlp/up_bias"),
            Fused(axis=1, part_layout=IDENTITY, groups=ffn),
        ),
        Rule(f"{MLP}.experts.down_proj", "blocks/mlp/down"),
        Rule(f"{MLP}.experts.down_proj_bias", "blocks/mlp/down_bias"),
    )
    return {config.name: (*embedding_and_head_rules(config), *attention_rules(config), *routing, *experts)}


def read_config(values: Mapping[str, Any]) -> BackboneConfig:
    """Reads transformers' GptOssConfig; keys that a file leaves out are as in gpt-oss-120b."""
    values = {**DEFAULTS, **values}
    if not values.get("rope_parameters") and not values.get("rope_scaling"):
        values["rope_scaling"] = DEFAULT_SCALING
    require_values(values, {"hidden_act": "silu", "swiglu_alpha": SWIGLU_ALPHA})
    experts = ExpertsConfig(
        count=values.get("num_local_experts", 128),
        top_k=values.get("num_experts_per_tok", 4),
        ffn=values["intermediate_size"],
        router=RouterConfig(bias=True),
        biases=True,
        limit=float(values.get("swiglu_limit", 7.0)),
        up_offset=1.0,
        balance_weight=read_balance_weight(values),
    )
    return read_decoder(
        values,
        BIASES if values.get("attention_bias", True) else (),
        activation="quick_gelu",
        attention_sinks=True,
        experts=experts,
        **read_attention_types(values, ALTERNATING),
    )


def write_config(config: BackboneConfig) -> dict[str, Any]:
    """Writes transformers' GptOssConfig."""
    experts = require_experts(config)
    values = {
        **write_decoder(config),
        **write_attention_types(config),
        "intermediate_size": experts.ffn,
        "head_dim": config.head_width,
        "attention_bias": bool(config.biases),
        "num_local_experts": experts.count,
        "num_experts_per_tok": experts.top_k,
        "swiglu_alpha": SWIGLU_ALPHA,
        "swiglu_limit": experts.limit,
        **write_balance_weight(experts),
    }
    if config.rope_scaling is None:
        values["rope_scaling"] = {"rope_type": "default", "rope_theta": config.rope_base}
    require_round_trip(config, read_config(values), except_fields=("ffn",))
    return values


PUBLISHED = (
    PublishedArchitecture(
        name="GptOssForCausalLM",
        model_types=("gpt_oss",),
        config_type=BackboneConfig,
        read_config=read_config,
        write_config=write_config,
        rules=rules,
        ignored=ignored_buffers,
        duplicates=tied_head_duplicates,
    ),
)
