"""SigLIP 2's image tower of any resolution (NaFlex, arXiv 2502.14786), `Siglip2VisionModel` of transformers.

The checkpoints of SigLIP 2 with a fixed resolution are SigLIP's, by their `model_type` too.
"""

import math
from collections.abc import Mapping
from typing import Any

from configs.architectures import VisionConfig
from mmjax.weights.published.encoders.shared.vision_transformer import (
    HALF_PIXELS,
    read_encoder,
    require_encoder_round_trip,
    write_encoder,
)
from mmjax.weights.published.encoders.vision import siglip
from mmjax.weights.published.rules import PublishedArchitecture, Rule, Rules
from mmjax.weights.published.tensor_layouts import LINEAR

PIXELS = "embed/pixels/kernel"
DEFAULTS = {**siglip.DEFAULTS, "num_patches": 256}
"""Values that transformers assumes where a file leaves them out."""


def rules(config: VisionConfig) -> Rules:
    """Rules of the encoder: SigLIP's, except that the projection of patches is a matmul in the checkpoint too."""
    pixels = Rule(f"{siglip.TOWER}.embeddings.patch_embedding.weight", PIXELS, LINEAR)
    others = (rule for rule in siglip.rules(config)[config.name] if rule.parameters != PIXELS)
    return {config.name: (pixels, *others)}


def read_config(values: Mapping[str, Any]) -> VisionConfig:
    """Reads transformers' Siglip2VisionConfig, or a Siglip2Config that contains one.

    Raises:
        ValueError: A key has a value that cannot be computed.
    """
    tower = {**DEFAULTS, **values, **values.get("vision_config", {})}
    side = math.isqrt(tower["num_patches"])
    if side**2 != tower["num_patches"]:
        raise ValueError(f"num_patches is {tower['num_patches']}; only the number of a square can be computed")
    if not isinstance(tower["patch_size"], int):
        raise ValueError(f"patch_size is {tower['patch_size']!r}; only one number, for a square, can be computed")
    sized = {**tower, "image_size": side * tower["patch_size"]}
    return read_encoder(sized, HALF_PIXELS, interpolation="bilinear_antialiased")


def write_config(config: VisionConfig) -> dict[str, Any]:
    """Writes transformers' Siglip2VisionConfig."""
    values = {**write_encoder(config), "num_patches": config.grid**2}
    del values["image_size"]
    require_encoder_round_trip(config, read_config(values))
    return values


PUBLISHED = (
    PublishedArchitecture(
        name="Siglip2VisionModel",
        model_types=("siglip2_vision_model", "siglip2"),
        config_type=VisionConfig,
        read_config=read_config,
        write_config=write_config,
        rules=rules,
        ignored=siglip.ignored,
        aliases=siglip.ALIASES,
    ),
)
