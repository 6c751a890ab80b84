"""Rotary positions of time, row and column (mRoPE, arXiv 2409.12191, section 2.1) in the decoder's config.json."""

from collections.abc import Mapping
from typing import Any

from configs.architectures import BackboneConfig


def read_sections(text: Mapping[str, Any]) -> tuple[tuple[int, ...], dict[str, Any]]:
    """Reads the sections of a head; returns them and the decoder's values with positions along the text alone.

    Args:
        text: The decoder's values.

    Raises:
        ValueError: The values have no sections.
    """
    rotary = dict(text.get("rope_parameters") or text.get("rope_scaling") or {})
    sections = rotary.pop("mrope_section", None)
    if not sections:
        raise ValueError("rope_parameters has no mrope_section; positions of time, row and column need it")
    kind = rotary.get("rope_type", rotary.get("type", "default"))
    plain = {**rotary, "rope_type": "default" if kind == "mrope" else kind}
    return tuple(sections), {**text, "rope_parameters": plain}


def write_sections(text: Mapping[str, Any], backbone: BackboneConfig) -> dict[str, Any]:
    """Adds the sections of a backbone to the decoder's values; the inverse of `read_sections`."""
    text = dict(text)
    base = text.pop("rope_theta")
    scaling = {**text.pop("rope_scaling", {"rope_type": "default"}), "mrope_section": list(backbone.rope_sections)}
    interleaved = {"mrope_interleaved": True} if backbone.rope_interleaved else {}
    return {**text, "rope_theta": base, "rope_scaling": {**scaling, **interleaved}}
