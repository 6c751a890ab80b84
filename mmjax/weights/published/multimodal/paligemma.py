"""PaliGemma (arXiv 2407.07726) and PaliGemma 2 (2412.03555): SigLIP's tower, one matmul, and Gemma or Gemma 2.

The tokens of images and of the prompt attend to each other both ways.
"""

import dataclasses
from typing import Any

from configs.architectures import BackboneConfig
from configs.modules.projectors import LinearProjectorConfig
from mmjax.weights.published.decoders.dense import gemma
from mmjax.weights.published.encoders.vision import siglip
from mmjax.weights.published.key_table import Fields, Keys, Nested, Table, Values
from mmjax.weights.published.multimodal.multimodal_format import MultimodalFormat, PublishedEncoder, by_model_type
from mmjax.weights.published.multimodal.projector_keys import PROJECTOR, PROJECTOR_ALIASES
from mmjax.weights.published.rules import PublishedArchitecture, linear_rules
from mmjax.weights.published.tensor_layouts import LINEAR

BOTH_WAYS = "use_bidirectional_attention"


def both_ways(decoder: PublishedArchitecture) -> PublishedArchitecture:
    """Makes the decoder of files that say of it that prompts attend both ways."""

    def read_config(values: Values) -> BackboneConfig:
        if values.get(BOTH_WAYS) is False:
            raise ValueError(f"text_config.{BOTH_WAYS} is False; only prompts that attend both ways can be computed")
        return decoder.read_config({**values, BOTH_WAYS: None})

    return dataclasses.replace(decoder, read_config=read_config)


def backbone_keys(backbone: BackboneConfig) -> Table:
    """Entries of the backbone's sizes outside its own part."""
    width = backbone.width

    def read(values: Values) -> dict[str, Any]:
        projected = values.get("projection_dim", width)
        if projected != width:
            raise ValueError(f"projection_dim is {projected}, and text_config.hidden_size {width}; they must be equal")
        return {"bidirectional": "prompt"}

    sizes = {"projection_dim": width, "hidden_size": width, "vocab_size": backbone.vocabulary}
    of_tower = {"projection_dim": width, "vision_use_head": False}
    return (Keys(read, lambda _: sizes), Nested("vision_config", (Keys(write=lambda _: of_tower),)))


TOWER = PublishedEncoder(
    prefix="vision_tower.",
    architectures=by_model_type(*siglip.PUBLISHED),
    projector=lambda encoder: linear_rules(f"{PROJECTOR}.linear", "projector/linear", LINEAR, bias=True),
    keys=lambda tower: (Fields({"projector": LinearProjectorConfig()}),),
)
FORMAT = MultimodalFormat(
    encoders=(TOWER,),
    decoders=by_model_type(*map(both_ways, gemma.PUBLISHED), only=("gemma", "gemma2")),
    keys=backbone_keys,
    tied_by_default=True,
    own_aliases=PROJECTOR_ALIASES,
)
PUBLISHED = (FORMAT.published("PaliGemmaForConditionalGeneration", ("paligemma",)),)
