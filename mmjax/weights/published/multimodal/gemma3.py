"""Gemma 3 with images (arXiv 2503.19786): SigLIP's tower, averages of patches, and the decoder of the text models.

The tokens of an image attend to each other both ways.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from configs.architectures import ModelConfig, VisionConfig
from configs.projectors import LinearProjectorConfig
from mmjax.weights.published.decoders.dense import gemma
from mmjax.weights.published.encoders.vision import siglip
from mmjax.weights.published.multimodal.multimodal_format import MultimodalFormat, PublishedEncoder, by_model_type
from mmjax.weights.published.rules import Rule, norm_rules

PROJECTOR = "multi_modal_projector"
DEFAULT_IMAGE_TOKENS = 256


def projector_rules(encoder: VisionConfig) -> tuple[Rule, ...]:
    """Rules of the norm and the matmul behind the averages."""
    del encoder
    return (
        Rule(f"{PROJECTOR}.mm_input_projection_weight", "projector/linear/kernel"),
        *norm_rules(f"{PROJECTOR}.mm_soft_emb_norm", "projector/norm", bias=False),
    )


TOWER = PublishedEncoder(
    prefix="vision_tower.", architectures=by_model_type(*siglip.PUBLISHED), projector=projector_rules
)
FORMAT = MultimodalFormat(
    encoders=(TOWER,),
    decoders={each.model_types[0]: each for each in gemma.PUBLISHED if "gemma3_text" in each.model_types},
    tied_by_default=True,
    own_aliases=((f"model.{PROJECTOR}.", f"{PROJECTOR}."),),
)


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """Reads transformers' Gemma3Config.

    Raises:
        ValueError: A key has a value that cannot be computed.
    """
    tower = TOWER.read_config(values)
    tokens = values.get("mm_tokens_per_image", DEFAULT_IMAGE_TOKENS)
    side = round(tokens**0.5)
    if side**2 != tokens or tower.grid % side:
        raise ValueError(
            f"mm_tokens_per_image is {tokens} for {tower.grid} x {tower.grid} patches; give a square that divides them"
        )
    projector = LinearProjectorConfig(norm=True, norm_epsilon=tower.norm_epsilon, bias=False)
    encoder = dataclasses.replace(tower, merge=tower.grid // side, projector=projector)
    backbone = dataclasses.replace(FORMAT.read_decoder_config(values), bidirectional="images")
    return ModelConfig((encoder,), backbone, ())


def write_config(model: ModelConfig) -> dict[str, Any]:
    """Writes transformers' Gemma3Config, without the ids of image tokens."""
    (encoder,) = model.encoders
    assert isinstance(encoder, VisionConfig), "the format has checked it"
    return {
        "mm_tokens_per_image": (encoder.grid // encoder.merge) ** 2,
        "vision_config": TOWER.write_config(encoder),
        "text_config": FORMAT.write_decoder_config(model.backbone),
    }


PUBLISHED = (FORMAT.published("Gemma3ForConditionalGeneration", ("gemma3",), read_config, write_config),)
