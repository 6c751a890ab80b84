"""gpt-oss (arXiv 2508.10925), `GptOssForCausalLM`: attention sinks, and experts with biases and a clamped gate.

Layers attend locally and globally by turns. All experts of a layer are in one tensor for gate and up, whose columns
alternate, and one for down. The authors' files hold them in 4 bits; files with bfloat16 or float32 are read.
"""

from typing import Any

from configs.architectures import BackboneConfig
from mmjax.weights.published.decoders.shared.attention_types import attention_types
from mmjax.weights.published.decoders.shared.expert_rules import BALANCE, require_experts, with_width_of_experts
from mmjax.weights.published.decoders.shared.llama_like import (
    HEAD_WIDTH,
    MLP,
    ROTARY,
    SIZES,
    TYING_AND_EPSILON,
    attention_rules,
    biases,
    decoder_architecture,
    embedding_and_head_rules,
)
from mmjax.weights.published.key_table import Fields, Fixed, Key, Keys, Values
from mmjax.weights.published.rules import Rule, Rules
from mmjax.weights.published.tensor_layouts import IDENTITY, LINEAR, Fused

BIASES = ("query", "key", "value", "output")
ALTERNATING = ("sliding_attention", "full_attention")
SWIGLU_ALPHA = 1.702  # the constant of `quick_gelu`
DEFAULTS = {"rope_theta": 150000.0, "head_dim": 64, "sliding_window": 128, "rms_norm_eps": 1e-5}
DEFAULT_SCALING = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
"""Scaling of rotary positions that transformers assumes where a file leaves it out."""


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


def prepare(values: Values) -> Values:
    """Completes a config.json; keys that a file leaves out are as in gpt-oss-120b."""
    values = {**DEFAULTS, **values}
    has_scaling = values.get("rope_parameters") or values.get("rope_scaling")
    return values if has_scaling else {**values, "rope_scaling": DEFAULT_SCALING}


def write_no_scaling(config: BackboneConfig) -> dict[str, Any]:
    """Writes unscaled rotary positions, which a file must name."""
    if config.rope_scaling is not None:
        return {}
    return {"rope_scaling": {"rope_type": "default", "rope_theta": config.rope_base}}


KEYS = (
    *SIZES,
    Fixed("hidden_act", "silu", written=True),
    ROTARY,
    *TYING_AND_EPSILON,
    attention_types(ALTERNATING),
    Key("intermediate_size", "experts.ffn"),
    HEAD_WIDTH,
    biases({"attention_bias": BIASES}, default=True),
    Key("num_local_experts", "experts.count", 128),
    Key("num_experts_per_tok", "experts.top_k", 4),
    Fixed("swiglu_alpha", SWIGLU_ALPHA, written=True),
    Key("swiglu_limit", "experts.limit", 7.0, float),
    BALANCE,
    Keys(write=write_no_scaling),
    Fields({"activation": "quick_gelu", "attention_sinks": True}),
    Fields({"experts.router.bias": True, "experts.biases": True, "experts.up_offset": 1.0}),
)

PUBLISHED = (
    decoder_architecture(
        "GptOssForCausalLM", "gpt_oss", KEYS, prepare=prepare, as_written=with_width_of_experts, rules=rules
    ),
)
