"""Rotary positions in a config.json: the base of the frequencies, and their scaling for longer sequences."""

from collections.abc import Mapping
from typing import Any

from configs.attention.rope import LinearScaling, Llama3Scaling, LongRopeScaling, RopeScaling, YarnScaling
from configs.modules.backbone import BackboneConfig

# The type of the scaling, and the keys of config.json by the fields of the type, by `rope_type`.
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
    "longrope": (
        LongRopeScaling,
        {
            "short_factors": "short_factor",
            "long_factors": "long_factor",
            "original_positions": "original_max_position_embeddings",
            "factor": "factor",
            "attention_factor": "attention_factor",
        },
    ),
}

# Other keys that a file may have, with the only value that can be computed.
_REQUIRED_VALUES = {"partial_rotary_factor": 1.0}

# Fields that are written only where they have another value.
_UNWRITTEN = {"attention_factor": 0.0, "truncate": True, "mscale": 0.0, "mscale_all_dim": 0.0}


def read_rotary(values: Mapping[str, Any], default_base: float = 10000.0) -> tuple[float, RopeScaling | None]:
    """Reads the base of the rotary frequencies and their scaling.

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
    if any(isinstance(value, Mapping) for value in parameters.values()):
        raise ValueError(f"the rotary positions are those of {', '.join(parameters)} apart; give those of all layers")
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
    fields = {field: _as_tuple(parameters.get(key)) for field, key in keys.items()}
    if "original_positions" in fields:
        outside = values.get("original_max_position_embeddings")  # takes precedence, as in transformers
        fields["original_positions"] = outside or fields["original_positions"] or values["max_position_embeddings"]
        fields["factor"] = fields["factor"] or values["max_position_embeddings"] / fields["original_positions"]
    return base, scaling(**{field: value for field, value in fields.items() if value is not None})


def read_rotary_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a BackboneConfig that `read_rotary` reads, by their names."""
    base, scaling = read_rotary(values)
    return {"rope_base": base, "rope_scaling": scaling}


def read_partial_rotary_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """As `read_rotary_fields`, with `rope_width`, of a file in which only some channels of a head may rotate."""
    values, width = read_partial_rotary(values)
    return {**read_rotary_fields(values), "rope_width": width}


def _as_tuple(value: Any) -> Any:
    return tuple(map(float, value)) if isinstance(value, list | tuple) else value


def read_local_rotary(values: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any] | None]:
    """Separates the rotary positions of global and of local layers in the contents of a config.json.

    Returns:
        The contents with the positions of global layers, and the positions of local layers; the latter are None where
        the file has one set for both.
    """
    by_type = values.get("rope_parameters") or {}
    if "full_attention" not in by_type:
        return values, None
    return {**values, "rope_parameters": by_type["full_attention"]}, by_type.get("sliding_attention")


def read_local_base(values: Mapping[str, Any], local: Mapping[str, Any]) -> float:
    """Reads `BackboneConfig.local_rope_base`, given both results of `read_local_rotary`.

    Raises:
        ValueError: Local layers have a scaling of their own.
    """
    base, scaling = read_rotary({"rope_parameters": local})
    if (base, scaling) == read_rotary(values):
        return 0.0
    if scaling is not None:
        raise ValueError(f"local layers have rope_type {local['rope_type']!r}; only 'default' can be computed")
    return base


def read_partial_rotary(values: Mapping[str, Any]) -> tuple[Mapping[str, Any], int]:
    """Returns the contents of a config.json without `partial_rotary_factor`, and `BackboneConfig.rope_width`."""
    key = "partial_rotary_factor"
    nested = [name for name in ("rope_parameters", "rope_scaling") if values.get(name)]
    places = [values[name] for name in nested] + [values]
    fraction = next((float(place[key]) for place in places if place.get(key) is not None), 1.0)
    others = {name: {k: v for k, v in values[name].items() if k != key} for name in nested}
    width = values.get("head_dim") or values["hidden_size"] // values["num_attention_heads"]
    rotated = int(width * fraction)
    return {**{k: v for k, v in values.items() if k != key}, **others}, 0 if rotated == width else rotated


def write_rotated_part(config: BackboneConfig) -> dict[str, Any]:
    """Writes the key for the share of a head's channels that rotates."""
    return {"partial_rotary_factor": config.rotary_width / config.head_width}


def write_rotary(config: BackboneConfig) -> dict[str, Any]:
    """Writes the keys of transformers before version 5, which later versions read too."""
    scaling = config.rope_scaling
    if scaling is None:
        return {"rope_theta": config.rope_base}
    kind, keys = next(
        (kind, keys) for kind, (scaling_type, keys) in _SCALINGS.items() if isinstance(scaling, scaling_type)
    )
    fields = {field: getattr(scaling, field) for field in keys}
    entries = {
        keys[field]: list(value) if isinstance(value, tuple) else value
        for field, value in fields.items()
        if field not in _UNWRITTEN or value != _UNWRITTEN[field]
    }
    return {"rope_theta": config.rope_base, "rope_scaling": {"rope_type": kind, **entries}}
