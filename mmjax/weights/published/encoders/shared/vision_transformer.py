"""Published vision transformers, made from tables of keys (`vision_keys.py`) and from rules (`vision_rules.py`)."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from configs.architectures import VisionConfig
from mmjax.weights.published.key_table import Fields, Table, Values
from mmjax.weights.published.rules import PublishedArchitecture, require_round_trip
from mmjax.weights.published.table_architecture import table_architecture

UNDESCRIBED_FIELDS = ("merge", "projector", "pixel_mean", "pixel_std")
"""Fields of VisionConfig that config.json does not describe."""

VIT_BASE_DEFAULTS = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "image_size": 224,
    "patch_size": 16,
    "num_channels": 3,
}
"""Values that transformers assumes for vision transformers where a file leaves them out; each model adds its own."""

_OF_MOST = Fields({"merge": 1, "positions": "learned"})


def encoder_architecture(name: str, model_types: tuple[str, ...], keys: Table, **others: Any) -> PublishedArchitecture:
    """Makes a published vision transformer; its positions are learned unless the table says otherwise.

    Args:
        name: Name of the class that loads it.
        model_types: Its `model_type`s.
        keys: The keys of its config.json.
        **others: Other arguments of `table_architecture`.
    """
    checks = {"require_same": require_encoder_round_trip}
    return table_architecture(name, model_types, {"": VisionConfig}, (_OF_MOST, *keys), **{**checks, **others})


def require_encoder_round_trip(config: VisionConfig, read_back: VisionConfig) -> None:
    """As `require_round_trip`, for a config.json that describes all blocks, including unused ones.

    Args:
        config: The configuration that was written.
        read_back: The configuration that `read_config` returns for the config.json.

    Raises:
        ValueError: They differ in fields that config.json describes.
    """
    complete = dataclasses.replace(config, depth=config.depth + config.unused_blocks, unused_blocks=0)
    if config.unused_blocks:  # the norm after the last block is unused with it
        complete = dataclasses.replace(complete, final_norm=read_back.final_norm)
    require_round_trip(complete, read_back, UNDESCRIBED_FIELDS)


def of_whole_models(defaults: Mapping[str, Any]) -> Callable[[Values], Values]:
    """Completes the config.json of a tower, or of a whole model whose `vision_config` describes the tower."""
    return lambda values: {**defaults, **values, **values.get("vision_config", {})}
