"""Checks that the options of a backbone fit each other; `BackboneConfig` calls them when it is made."""

from typing import Any

import numpy as np

from configs.attention.attention_kinds import ATTENTION_KINDS
from configs.attention.rope import LongRopeScaling


def check_latent_attention(config: Any) -> None:
    """Raises ValueError for options that latent attention does not have."""
    if config.latent_attention is None:
        return
    if config.kv_heads != config.heads:
        raise ValueError(
            f"BackboneConfig.kv_heads is {config.kv_heads}; with latent_attention all {config.heads} heads have keys"
        )
    if config.positions != "rotary":
        raise ValueError(
            f"BackboneConfig.positions is {config.positions!r}; latent_attention rotates part of every head"
        )
    unsupported = {
        "attention_width": config.attention_width > 0,
        "rope_width": config.rope_width > 0,
        "attention_sinks": config.attention_sinks,
        "qk_norm": config.qk_norm != "none",
        "biases": not {"query", "key", "value", "output"}.isdisjoint(config.biases),
        "inner_norms": "attention" in config.inner_norms,
        "rope_sections": bool(config.rope_sections),
        "attention_temperature": config.attention_temperature is not None,
    }
    for field in (field for field, given in unsupported.items() if given):
        raise ValueError(f"BackboneConfig.{field} is {getattr(config, field)!r}, which latent_attention has not")


def check_experts(config: Any) -> None:
    """Raises ValueError for experts that do not fit the feed-forward layer or the depth."""
    experts = config.experts
    if experts is None:
        return
    if not config.gated or "mlp" in (*config.biases, *config.inner_norms):
        raise ValueError(
            "BackboneConfig.experts are gated and have no inner norms and biases of mlp "
            "(experts have their own, ExpertsConfig.biases); leave those out"
        )
    if not config.layers_with_experts:
        raise ValueError(
            f"BackboneConfig: no block of depth = {config.depth} has experts, with experts.dense_layers = "
            f"{experts.dense_layers} and experts.interval = {experts.interval}; leave at least one block to experts"
        )


def check_rotary(config: Any) -> None:
    """Raises ValueError for numbers of channels that cannot rotate."""
    width, scaling = config.rotary_width, config.rope_scaling
    if config.positions == "rotary" and width % 2:
        raise ValueError(f"BackboneConfig: head width {width} is odd; rotary positions need pairs")
    for field in ("rope_base", "local_rope_base"):
        base = getattr(config, field)
        if not base > 1 and (field, base) != ("local_rope_base", 0):
            raise ValueError(f"BackboneConfig.{field} is {base}; it must be more than 1")
    if not 0 <= config.rope_width <= config.head_width or (config.rope_width and config.positions != "rotary"):
        raise ValueError(
            f"BackboneConfig.rope_width is {config.rope_width}, of heads {config.head_width} wide, and positions = "
            f"{config.positions!r}; give no more, and rotary positions"
        )
    if isinstance(scaling, LongRopeScaling) and len(scaling.short_factors) != width // 2:
        raise ValueError(
            f"BackboneConfig.rope_scaling has {len(scaling.short_factors)} factors; give one for each of the "
            f"{width // 2} pairs of channels that rotate"
        )


def check_pattern(config: Any) -> None:
    """Raises ValueError for a pattern of attention that does not fit the window or the positions."""
    unknown = [kind for kind in config.attention_pattern if kind not in ATTENTION_KINDS]
    if unknown or not config.attention_pattern:
        raise ValueError(
            f"BackboneConfig.attention_pattern is {config.attention_pattern}; "
            f"give one or more of {', '.join(ATTENTION_KINDS)}"
        )
    kinds = config.attention_kinds
    for kind, field in (("local", "attention_window"), ("chunked", "attention_chunk")):
        size = getattr(config, field)
        if (kind in config.attention_pattern) != (size > 0):
            raise ValueError(
                f"BackboneConfig.{field} is {size} and attention_pattern {config.attention_pattern}; {kind} layers "
                "need one, and only they have one"
            )
    if {"local", "chunked"} <= set(config.attention_pattern):
        raise ValueError(f"BackboneConfig.attention_pattern is {config.attention_pattern}; local or chunked, not both")
    if set(kinds) != {"global"} and (config.rope_sections or config.positions != "rotary"):
        raise ValueError(
            f"BackboneConfig.attention_pattern is {config.attention_pattern}; layers that are not global count "
            "positions along the text, and need rotary positions without rope_sections"
        )
    if config.attention_temperature and "unrotated" not in kinds:
        raise ValueError(
            f"BackboneConfig.attention_temperature is of unrotated layers; attention_pattern is "
            f"{config.attention_pattern}"
        )
    if config.qk_norm == "rotated" and config.positions != "rotary":
        raise ValueError(f"BackboneConfig.qk_norm is 'rotated'; positions are {config.positions!r}, not 'rotary'")


def check_sections(config: Any) -> None:
    """Raises ValueError for sections of rotary positions that do not fit a head, or each other."""
    sections = config.rope_sections
    if not sections:
        if config.rope_interleaved or config.positions_per_second:
            raise ValueError(
                "BackboneConfig.rope_interleaved and positions_per_second are of multimodal positions; give "
                "rope_sections"
            )
        return
    if config.positions != "rotary":
        raise ValueError(f"BackboneConfig.rope_sections need rotary positions, and positions = {config.positions!r}")
    if config.positions_per_second < 0:
        raise ValueError(f"BackboneConfig.positions_per_second is {config.positions_per_second}; it must be at least 0")
    if len(sections) != 3 or min(sections) < 1 or sum(sections) != config.rotary_width // 2:
        raise ValueError(
            f"BackboneConfig.rope_sections = {sections}; it must be three numbers of pairs, for time, row and "
            f"column, which sum to half of the {config.rotary_width} channels of a head that rotate"
        )
    if np.bincount(config.rope_axes, minlength=3).tolist() != list(sections):
        raise ValueError(
            f"BackboneConfig.rope_sections = {sections} cannot be interleaved: a pair of row or column would come "
            "after the last one of a head; make the first section larger"
        )
