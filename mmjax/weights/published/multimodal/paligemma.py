"""PaliGemma (arXiv 2407.07726) and PaliGemma 2 (2412.03555): SigLIP's tower, one matmul, and Gemma or Gemma 2.

The tokens of images and of the prompt attend to each other both ways.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from configs.architectures import ModelConfig, VisionConfig
from configs.projectors import LinearProjectorConfig
from mmjax.weights.published.decoders.dense import gemma
from mmjax.weights.published.encoders.vision import siglip
from mmjax.weights.published.multimodal.multimodal_format import MultimodalFormat, PublishedEncoder, by_model_type
from mmjax.weights.published.rules import Rule, linear_rules
from mmjax.weights.published.tensor_layouts import LINEAR

PROJECTOR = "multi_modal_projector"
BOTH_WAYS = "use_bidirectional_attention"


def projector_rules(encoder: VisionConfig) -> tuple[Rule, ...]:
    """Rules of the projector's matmul."""
    del encoder
    return linear_rules(f"{PROJECTOR}.linear", "projector/linear", LINEAR, bias=True)


TOWER = PublishedEncoder(
    prefix="vision_tower.", architectures=by_model_type(*siglip.PUBLISHED), projector=projector_rules
)
FORMAT = MultimodalFormat(
    encoders=(TOWER,),
    decoders={each.model_types[0]: each for each in gemma.PUBLISHED if each.model_types[0] in ("gemma", "gemma2")},
    tied_by_default=True,
    own_aliases=((f"model.{PROJECTOR}.", f"{PROJECTOR}."),),
)


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """Reads transformers' PaliGemmaConfig.

    Raises:
        ValueError: A key has a value that cannot be computed.
    """
    text = dict(values["text_config"])
    if text.pop(BOTH_WAYS, None) is False:
        raise ValueError(f"text_config.{BOTH_WAYS} is False; only prompts that attend both ways can be computed")
    backbone = FORMAT.read_decoder_config({**values, "text_config": text})
    width = values.get("projection_dim", backbone.width)
    if width != backbone.width:
        raise ValueError(f"projection_dim is {width}, and text_config.hidden_size {backbone.width}; they must be equal")
    encoder = dataclasses.replace(TOWER.read_config(values), projector=LinearProjectorConfig())
    return ModelConfig((encoder,), dataclasses.replace(backbone, bidirectional="prompt"), ())


def write_config(model: ModelConfig) -> dict[str, Any]:
    """Writes transformers' PaliGemmaConfig, without the ids of image tokens."""
    (encoder,) = model.encoders
    assert isinstance(encoder, VisionConfig), "the format has checked it"
    width = model.backbone.width
    return {
        "projection_dim": width,
        "hidden_size": width,
        "vocab_size": model.backbone.vocabulary,
        "vision_config": {**TOWER.write_config(encoder), "projection_dim": width, "vision_use_head": False},
        "text_config": FORMAT.write_decoder_config(model.backbone),
    }


PUBLISHED = (FORMAT.published("PaliGemmaForConditionalGeneration", ("paligemma",), read_config, write_config),)
