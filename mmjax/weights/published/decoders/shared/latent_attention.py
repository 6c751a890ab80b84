"""Multi-head latent attention as DeepSeek-V2 (arXiv 2405.04434) and V3 (2412.19437) publish it."""

import math
from collections.abc import Mapping
from typing import Any

from configs.attention.latent_attention import LatentAttentionConfig
from configs.attention.rope import RopeScaling, YarnScaling, yarn_mscale
from configs.modules.backbone import BackboneConfig
from mmjax.weights.published.channel_orders import InterleavedRotary
from mmjax.weights.published.decoders.shared.llama_like import BLOCK
from mmjax.weights.published.decoders.shared.rope_config import read_rotary
from mmjax.weights.published.key_table import Entry, Keys
from mmjax.weights.published.rules import Rule, linear_rules, norm_rules
from mmjax.weights.published.tensor_layouts import LINEAR

_WIDTHS = {
    "query_rank": "q_lora_rank",
    "kv_rank": "kv_lora_rank",
    "nope_width": "qk_nope_head_dim",
    "rope_width": "qk_rope_head_dim",
    "value_width": "v_head_dim",
}
"""Keys of config.json by the fields of LatentAttentionConfig."""


def latent_attention_rules(config: BackboneConfig) -> tuple[Rule, ...]:
    """Rules of the projections of attention, and of the norms of latent vectors."""
    latent = config.latent_attention
    assert latent is not None, "the rules are of backbones with latent attention"
    theirs, ours = f"{BLOCK}.self_attn", "blocks/attention"
    query_layout = InterleavedRotary(config.heads, rotated=latent.rope_width)
    if latent.query_rank:
        query = (
            *linear_rules(f"{theirs}.q_a_proj", f"{ours}/query_down", LINEAR, bias=False),
            *norm_rules(f"{theirs}.q_a_layernorm", f"{ours}/query_norm", bias=False),
            *linear_rules(f"{theirs}.q_b_proj", f"{ours}/query", query_layout, bias=False),
        )
    else:
        query = linear_rules(f"{theirs}.q_proj", f"{ours}/query", query_layout, bias=False)
    latent_layout = InterleavedRotary(1, rotated=latent.rope_width)
    return (
        *query,
        *linear_rules(f"{theirs}.kv_a_proj_with_mqa", f"{ours}/latent", latent_layout, bias=False),
        *norm_rules(f"{theirs}.kv_a_layernorm", f"{ours}/latent_norm", bias=False),
        *linear_rules(f"{theirs}.kv_b_proj", f"{ours}/key_value", LINEAR, bias=False),
        *linear_rules(f"{theirs}.o_proj", f"{ours}/output", LINEAR, bias=False),
    )


def read_latent_attention(values: Mapping[str, Any]) -> dict[str, Any]:
    """Reads the fields `latent_attention` and `score_scale` of a BackboneConfig.

    Raises:
        ValueError: A key has a value that cannot be computed.
    """
    heads = values["num_attention_heads"]
    if (values.get("num_key_value_heads") or heads) != heads:
        raise ValueError(f"num_key_value_heads is {values['num_key_value_heads']}; only {heads}, all, can be computed")
    if values.get("attention_bias"):
        raise ValueError("attention_bias is true; only projections without biases can be computed")
    if values.get("rope_interleave", True) is False:
        raise ValueError("rope_interleave is false; only weights that rotate pairs of neighbours are read")
    latent = LatentAttentionConfig(**{field: values[key] or 0 for field, key in _WIDTHS.items()})
    return {"latent_attention": latent, "score_scale": _score_scale(latent, read_rotary(values)[1])}


def write_latent_attention(config: BackboneConfig) -> dict[str, Any]:
    """Writes the keys that `read_latent_attention` reads.

    Raises:
        ValueError: The backbone has no latent attention.
    """
    latent = config.latent_attention
    if latent is None:
        raise ValueError("latent_attention is None, but the published architecture has some")
    widths = {key: getattr(latent, field) for field, key in _WIDTHS.items()}
    return {
        **widths,
        "q_lora_rank": latent.query_rank or None,
        "head_dim": latent.rope_width,
        "attention_bias": False,
    }


def _score_scale(latent: LatentAttentionConfig, scaling: RopeScaling | None) -> float:
    """Computes the scale of scores with YaRN's `mscale_all_dim`, also for unrotated channels; 0 for the usual scale."""
    if not isinstance(scaling, YarnScaling) or not scaling.mscale_all_dim:
        return 0.0
    return yarn_mscale(scaling.factor, scaling.mscale_all_dim) ** 2 / math.sqrt(latent.head_width)


LATENT_ATTENTION: Entry = Keys(read_latent_attention, write_latent_attention)
"""The entry of these keys."""
