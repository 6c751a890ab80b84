"""Rotary positions in a config.json: the base of the frequencies, and their scaling for longer sequences."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from configs.backbone import BackboneConfig
from configs.rope import LinearScaling, Llama3Scaling, RopeScaling, YarnScaling

# By `rope_type`: the type of the scaling, and the keys of config.json by the fields of that type.
_SCALINGS = {
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
            "truncate": "truncate",
            "mscale": "mscale",
            "mscale_all_dim": "mscale_all_dim",
        },
    ),
}

# Other keys that a file may have, with the only value that can be computed.
_REQUIRED_VALUES = {"partial_rotary_factor": 1.0}

# Fields that are written only where they have another value.
_UNWRITTEN = {"attention_factor": 0.0, "truncate": True, "mscale": 0.0, "mscale_all_dim": 0.0}


def read_rotary(values: Mapping[str, Any], default_base: float = 10000.0) -> tuple[float, RopeScaling | None]:
    """The base of the rotary frequencies and their scaling.

    Files of transformers before version 5 have `rope_theta` and `rope_scaling`, later ones `rope_parameters`.

    Args:
        values: Contents of config.json.
        default_base: The base for files that leave it out.

    Raises:
        ValueError: The scaling is of a kind that cannot be computed.
    """
    parameters = values.get("rope_parameters") or values.get("rope_scaling") or {}
    base = float(parameters.get("rope_theta") or values.get("rope_theta") or default_base)
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind == "default":
        return base, None
    if kind not in _SCALINGS:
        raise ValueError(
            f"the rotary positions are of type {kind!r}; only default, {', '.join(_SCALINGS)} can be computed"
        )
    scaling, keys = _SCALINGS[kind]
    for key, required in _REQUIRED_VALUES.items():
        value = parameters.get(key, values.get(key))
        if value not in (None, required):
            raise ValueError(f"{key} of the rotary positions is {value!r}; only {required!r} can be computed")
    fields = {field: parameters.get(key) for field, key in keys.items()}
    if fields.get("original_positions", 0) is None:
        fields["original_positions"] = values["max_position_embeddings"]
    return base, scaling(**{field: value for field, value in fields.items() if value is not None})


def write_rotary(config: BackboneConfig) -> dict[str, Any]:
    """The keys of transformers before version 5, which later versions read too."""
    scaling = config.rope_scaling
    if scaling is None:
        return {"rope_theta": config.rope_base}
    kind, keys = next(
        (kind, keys) for kind, (scaling_type, keys) in _SCALINGS.items() if isinstance(scaling, scaling_type)
    )
    entries = {
        keys[field]: value
        for field, value in dataclasses.asdict(scaling).items()
        if field not in _UNWRITTEN or value != _UNWRITTEN[field]
    }
    return {"rope_theta": config.rope_base, "rope_scaling": {"rope_type": kind, **entries}}
