"""Gemma 3 with images (arXiv 2503.19786): SigLIP's tower, averages of patches, and the decoder of the text models.

The tokens of an image attend to each other both ways.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from configs.architectures import ModelConfig
from configs.projectors import LinearProjectorConfig
from mmjax.weights.published.decoders import gemma
from mmjax.weights.published.encoders import siglip
from mmjax.weights.published.multimodal.vision_language import PIXEL_FIELDS, require_vision_language_model
from mmjax.weights.published.rules import (
    PublishedArchitecture,
    Rule,
    Rules,
    norm_rules,
    require_round_trip,
    with_prefix,
)

TOWER, DECODER, PROJECTOR = "vision_tower.", "language_model.", "multi_modal_projector"
(TEXT_MODEL,) = (each for each in gemma.PUBLISHED if each.model_types == ("gemma3_text",))
DEFAULT_IMAGE_TOKENS = 256

ALIASES = (
    ("model.language_model.", f"{DECODER}model."),
    ("lm_head.", f"{DECODER}lm_head."),
    ("model.multi_modal_projector.", f"{PROJECTOR}."),
    ("model.vision_tower.vision_model.", f"{TOWER}vision_model."),
    *((f"{model}{TOWER}{alias}", f"{TOWER}{prefix}") for model in ("", "model.") for alias, prefix in siglip.ALIASES),
)
"""Prefixes that version 5 of transformers uses in memory and in files."""


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """Reads transformers' Gemma3Config.

    Raises:
        ValueError: A key has a value that cannot be computed.
    """
    pixels = {key: values[key] for key in ("image_mean", "image_std") if key in values}
    tower = siglip.read_config({**pixels, **values["vision_config"]})
    tokens = values.get("mm_tokens_per_image", DEFAULT_IMAGE_TOKENS)
    side = round(tokens**0.5)
    if side**2 != tokens or tower.grid % side:
        raise ValueError(
            f"mm_tokens_per_image is {tokens} for {tower.grid} x {tower.grid} patches; give a square that divides them"
        )
    projector = LinearProjectorConfig(norm=True, norm_epsilon=tower.norm_epsilon, bias=False)
    encoder = dataclasses.replace(tower, merge=tower.grid // side, projector=projector)
    backbone = dataclasses.replace(gemma.read_gemma3(values["text_config"]), bidirectional="images")
    return ModelConfig((encoder,), backbone, ())


def write_config(model: ModelConfig) -> dict[str, Any]:
    """Writes transformers' Gemma3Config, without the ids of image tokens."""
    encoder = require_vision_language_model(model)
    if model.backbone.bidirectional != "images":
        raise ValueError(f"bidirectional is {model.backbone.bidirectional!r}; in Gemma 3 it is 'images'")
    text = gemma.write_gemma3(dataclasses.replace(model.backbone, bidirectional="none"))
    values = {
        "mm_tokens_per_image": (encoder.grid // encoder.merge) ** 2,
        "vision_config": {"model_type": "siglip_vision_model", **siglip.write_config(encoder)},
        "text_config": {"model_type": "gemma3_text", **text},
    }
    require_round_trip(encoder, require_vision_language_model(read_config(values)), PIXEL_FIELDS)
    return values


def rules(model: ModelConfig) -> Rules:
    """Rules of the tower, the projector and the decoder."""
    encoder, backbone = require_vision_language_model(model), model.backbone
    projector = (
        Rule(f"{PROJECTOR}.mm_input_projection_weight", "projector/linear/kernel"),
        *norm_rules(f"{PROJECTOR}.mm_soft_emb_norm", "projector/norm", bias=False),
    )
    return {
        encoder.name: (*with_prefix(siglip.rules(encoder)[encoder.name], TOWER), *projector),
        backbone.name: with_prefix(TEXT_MODEL.rules(backbone)[backbone.name], DECODER),
    }


def ignored(model: ModelConfig) -> tuple[str, ...]:
    """Ignored tensors of the tower and the decoder."""
    encoder = require_vision_language_model(model)
    return (
        *(TOWER + pattern for pattern in siglip.ignored(encoder)),
        *(DECODER + pattern for pattern in TEXT_MODEL.ignored(model.backbone)),
    )


def duplicates(model: ModelConfig) -> dict[str, str]:
    """The head, which some files hold although it is the embedding."""
    return {DECODER + copy: DECODER + name for copy, name in TEXT_MODEL.duplicates(model.backbone).items()}


PUBLISHED = (
    PublishedArchitecture(
        name="Gemma3ForConditionalGeneration",
        model_types=("gemma3",),
        config_type=ModelConfig,
        read_config=read_config,
        write_config=write_config,
        rules=rules,
        ignored=ignored,
        duplicates=duplicates,
        aliases=ALIASES,
    ),
)
