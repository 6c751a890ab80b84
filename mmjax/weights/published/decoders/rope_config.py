"""Rotary positions in a config.json: the base of the frequencies, and how they are stretched for longer sequences."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from configs.backbone import BackboneConfig
from configs.rope import LinearScaling, Llama3Scaling, RopeScaling, YarnScaling

# By `rope_type`: what it is here, and our fields -> the keys of theirs.
_KINDS = {
    "linear": (LinearScaling, {"factor": "factor"}),
    "llama3": (
        Llama3Scaling,
        {
            "factor": "factor",
            "low_freq_factor": "low_freq_factor",
            "high_freq_factor": "high_freq_factor",
            "original_positions": "original_max_position_embeddings",
        },
    ),
    "yarn": (
        YarnScaling,
        {
            "factor": "factor",
            "original_positions": "original_max_position_embeddings",
            "beta_slow": "beta_slow",
            "beta_fast": "beta_fast",
            "attention_factor": "attention_factor",
        },
    ),
}


# What else a file may ask for; only these can be computed.
_REFUSED = {"mscale": 1.0, "mscale_all_dim": 0.0, "truncate": True, "partial_rotary_factor": 1.0}


def read_rotary(values: Mapping[str, Any], base: float = 10000.0) -> tuple[float, RopeScaling | None]:
    """The base and the scaling; `base` is for files that leave it out.

    Files of transformers before 5 have `rope_theta` and `rope_scaling`, later ones `rope_parameters`.

    Raises:
        ValueError: A kind of scaling that can't be computed.
    """
    parameters = values.get("rope_parameters") or values.get("rope_scaling") or {}
    base = float(parameters.get("rope_theta") or values.get("rope_theta") or base)
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind == "default":
        return base, None
    if kind not in _KINDS:
        raise ValueError(
            f"the rotary positions are of type {kind!r}; only default, {', '.join(_KINDS)} can be computed"
        )
    scaling, keys = _KINDS[kind]
    for key, known in _REFUSED.items():
        asked = parameters.get(key, values.get(key))
        if asked not in (None, known):
            raise ValueError(f"{key} of the rotary positions is {asked!r}; only {known!r} can be computed")
    given = {ours: parameters.get(theirs) for ours, theirs in keys.items()}
    if given.get("original_positions", 0) is None:
        given["original_positions"] = values["max_position_embeddings"]
    return base, scaling(**{ours: value for ours, value in given.items() if value is not None})


def write_rotary(config: BackboneConfig) -> dict[str, Any]:
    """For any version of transformers: the keys of older ones, which later ones read too."""
    scaling = config.rope_scaling
    if scaling is None:
        return {"rope_theta": config.rope_base}
    kind, keys = next((kind, keys) for kind, (of, keys) in _KINDS.items() if isinstance(scaling, of))
    fields = dataclasses.asdict(scaling)
    told = {keys[ours]: value for ours, value in fields.items() if (ours, value) != ("attention_factor", 0.0)}
    return {"rope_theta": config.rope_base, "rope_scaling": {"rope_type": kind, **told}}
