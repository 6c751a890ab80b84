"""Gemma (arXiv 2403.08295), Gemma 2 (2408.00118) and the text models of Gemma 3 (2503.19786).

Norms scale by 1 + their parameter, token embeddings by the square root of the width, and the head is the embedding. The
later two have norms on both sides, and local and global layers. Gemma 2 limits scores and logits by soft caps; Gemma 3
has norms of queries and keys, and a rotary base of its own for local layers.
"""

import math
from typing import Any

from configs.architectures import BackboneConfig
from mmjax.weights.published.decoders.shared.attention_types import attention_types
from mmjax.weights.published.decoders.shared.llama_like import (
    HEAD_WIDTH,
    ROTARY,
    SIZES,
    TYING_AND_EPSILON,
    decoder_architecture,
)
from mmjax.weights.published.decoders.shared.rope_config import (
    read_local_base,
    read_local_rotary,
    read_rotary_fields,
    write_rotary,
)
from mmjax.weights.published.key_table import Entry, Fields, Key, Keys, Table, Unsupported, Values
from mmjax.weights.published.table_architecture import with_defaults

ALTERNATING = ("sliding_attention", "full_attention")
FIVE_LOCAL = ("sliding_attention",) * 5 + ("full_attention",)
DEFAULTS = {
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
    "hidden_activation": "gelu_pytorch_tanh",
}
"""Values that transformers assumes where a file leaves them out, in both later generations."""

GEMMA1_DEFAULTS = {"head_dim": 256, "tie_word_embeddings": True}
GEMMA1_ACTIVATIONS = ("gelu_pytorch_tanh", "gelu")  # the latter means the former in its files
GEMMA2_SOFTCAPS = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
GEMMA3_ROTARY = {"rope_theta": 1e6, "rope_local_base_freq": 1e4}


GELU_TANH = "gelu_pytorch_tanh"


def read_gemma1_activation(values: Values) -> dict[str, Any]:
    """Returns no field; raises ValueError for an activation that Gemma does not have."""
    activation = values.get("hidden_activation") or values.get("hidden_act") or GELU_TANH
    if activation not in GEMMA1_ACTIVATIONS:
        raise ValueError(f"hidden_act is {activation!r}; choose one of {', '.join(GEMMA1_ACTIVATIONS)}")
    return {}


def read_activation(values: Values) -> dict[str, Any]:
    """As `read_gemma1_activation`, for the later generations."""
    if values["hidden_activation"] != GELU_TANH:
        raise ValueError(f"hidden_activation is {values['hidden_activation']!r}; only {GELU_TANH!r} is known")
    return {}


def write_score_scale(config: BackboneConfig) -> dict[str, Any]:
    """Writes the width of heads that gives the scale of scores."""
    return {"query_pre_attn_scalar": max(1, round((config.score_scale or config.head_width**-0.5) ** -2))}


def read_gemma3_rotary(values: Values) -> dict[str, Any]:
    """Reads rotary positions; later versions of transformers have separate ones for each kind of layer."""
    values, local = read_local_rotary(values)
    local_base = read_local_base(values, local or {"rope_theta": values["rope_local_base_freq"]})
    return {**read_rotary_fields(values), "local_rope_base": local_base}


def write_local_base(config: BackboneConfig) -> dict[str, Any]:
    """Writes the base of local layers, under the key of versions before 5, which later versions read too."""
    return {"rope_local_base_freq": config.local_rope_base or config.rope_base}


EVERY_GENERATION: Table = (
    Unsupported("attention_bias", "; only projections without biases can be computed"),
    Unsupported("use_bidirectional_attention", "; only causal attention to text can be computed"),
    Keys(lambda values: {"embedding_scale": math.sqrt(values["hidden_size"])}),
    Fields({"activation": "gelu_tanh", "norm_offset": True}),
)


def softcap(key: str, field: str) -> Entry:
    """Makes the entry of a soft cap, which is null where there is none."""
    return Key(key, field, None, lambda value: float(value or 0.0), lambda value: value or None)


def later_generation(rotary: Entry, kinds: Entry) -> Table:
    """Makes the table of Gemma 2 or 3 from the entries of their rotary positions and of the kinds of their layers."""
    return (
        *SIZES,
        rotary,
        *TYING_AND_EPSILON,
        HEAD_WIDTH,
        kinds,
        Keys(read_activation, lambda _: {"hidden_activation": GELU_TANH}),
        Keys(lambda values: {"score_scale": float(values["query_pre_attn_scalar"]) ** -0.5}, write_score_scale),
        softcap("attn_logit_softcapping", "score_softcap"),
        softcap("final_logit_softcapping", "logit_softcap"),
        Fields({"norms": "both"}),
        *EVERY_GENERATION,
    )


GEMMA1 = (
    *SIZES,
    Keys(read_gemma1_activation, lambda _: {"hidden_act": GELU_TANH}),
    ROTARY,
    *TYING_AND_EPSILON,
    HEAD_WIDTH,
    Keys(write=lambda _: {"hidden_activation": GELU_TANH}),
    *EVERY_GENERATION,
)
GEMMA2 = later_generation(ROTARY, attention_types(ALTERNATING))
GEMMA3 = (
    *later_generation(Keys(read_gemma3_rotary, write_rotary), attention_types(FIVE_LOCAL)),
    Keys(write=write_local_base),
    Fields({"qk_norm": "head"}),
)

PUBLISHED = tuple(
    decoder_architecture(name, model_type, table, prepare=with_defaults(defaults))
    for name, model_type, table, defaults in (
        ("GemmaForCausalLM", "gemma", GEMMA1, GEMMA1_DEFAULTS),
        ("Gemma2ForCausalLM", "gemma2", GEMMA2, {**DEFAULTS, **GEMMA2_SOFTCAPS}),
        ("Gemma3ForCausalLM", "gemma3_text", GEMMA3, {**DEFAULTS, **GEMMA3_ROTARY}),
    )
)
