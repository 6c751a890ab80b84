"""Kinds of attention of a decoder's layers in a config.json: `layer_types` and `sliding_window`."""

from collections.abc import Mapping, Sequence
from typing import Any

from configs.attention.attention_kinds import AttentionKind
from configs.modules.backbone import BackboneConfig
from mmjax.weights.published.key_table import Entry, Keys

_KINDS: dict[str, AttentionKind] = {"full_attention": "global", "sliding_attention": "local"}


def read_attention_types(values: Mapping[str, Any], default: Sequence[str]) -> dict[str, Any]:
    """Reads the fields `attention_pattern` and `attention_window` of a BackboneConfig.

    Args:
        values: Contents of config.json.
        default: Types of layers, repeated to the depth, for files that have no `layer_types`.

    Raises:
        ValueError: A layer is of a type that cannot be computed, or no window is given.
    """
    depth = values["num_hidden_layers"]
    types = values.get("layer_types") or [default[layer % len(default)] for layer in range(depth)]
    unknown = [name for name in types if name not in _KINDS]
    if unknown or len(types) != depth:
        raise ValueError(f"layer_types is {list(types)} for {depth} layers; give each one of {', '.join(_KINDS)}")
    window = values.get("sliding_window")
    kinds: list[AttentionKind] = [_KINDS[name] for name in types]
    if "local" not in kinds or window is None:
        if "local" in kinds and values.get("layer_types"):
            raise ValueError("layer_types has sliding_attention, and sliding_window is None; give it positions")
        return {}
    return {"attention_pattern": shortest_pattern(kinds), "attention_window": window}


def shortest_pattern(kinds: Sequence[AttentionKind]) -> tuple[AttentionKind, ...]:
    """Returns the shortest pattern that, repeated, gives the kinds of all layers."""
    depth = len(kinds)
    length = next(n for n in range(1, depth + 1) if all(kinds[i] == kinds[i % n] for i in range(depth)))
    return tuple(kinds[:length])


def write_attention_types(config: BackboneConfig) -> dict[str, Any]:
    """Writes the keys that `read_attention_types` reads."""
    names = {kind: name for name, kind in _KINDS.items()}
    kinds = [config.attention_kinds[number] for number in config.kind_of_layers]
    return {"layer_types": [names[kind] for kind in kinds], "sliding_window": config.attention_window or None}


def attention_types(default: Sequence[str]) -> Entry:
    """Makes the entry of both keys; `default` is as in `read_attention_types`."""
    return Keys(lambda values: read_attention_types(values, default), write_attention_types)


def uniform_attention(model: str) -> Entry:
    """Makes the entry of decoders whose layers are all of one kind, which files describe by the window alone."""

    def write(config: BackboneConfig) -> dict[str, Any]:
        if len(config.attention_kinds) > 1:
            raise ValueError(f"attention_pattern is {config.attention_pattern}; all layers of {model} are of one kind")
        return {"sliding_window": config.attention_window or None}

    return Keys(lambda values: read_attention_types(values, ("sliding_attention",)), write)
