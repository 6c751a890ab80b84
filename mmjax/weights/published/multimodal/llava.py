"""LLaVA-1.5 (arXiv 2310.03744), LLaVA-NeXT, LLaVA-OneVision (2408.03326), and transformers' Pixtral (2410.07073).

A vision tower, a projector of two matmuls and a decoder. LLaVA-NeXT and LLaVA-OneVision lay the tiles of an image out
as one map, whose rows the learned vector `image_newline` ends (`data.text.image_layout.ImageLayout.joined`).
"""

import dataclasses
import functools

from configs.architectures import VisionConfig
from mmjax.weights.published.decoders.dense import llama, mistral, qwen2, qwen3
from mmjax.weights.published.encoders.vision import clip, pixtral, siglip
from mmjax.weights.published.key_table import Fixed, Keys, Table
from mmjax.weights.published.multimodal.multimodal_format import MultimodalFormat, PublishedEncoder, by_model_type
from mmjax.weights.published.multimodal.projector_keys import (
    IMAGE_TOKENS,
    PROJECTOR,
    PROJECTOR_ALIASES,
    feature_layer,
    mlp_projector,
    mlp_rules,
)
from mmjax.weights.published.table_architecture import with_defaults

NEWLINE = "image_newline"
CLIP = "clip_vision_model"

# Values that the files of LLaVA-1.5 leave out: the defaults of transformers for this architecture and for Llama.
VISION_DEFAULTS = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "image_size": 336,
    "patch_size": 14,
}
TEXT_DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "intermediate_size": 11008,
}
MISTRAL_DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
}
"""Values of the decoder that Pixtral's file leaves out: transformers' defaults."""

NEXT_GRIDS = ((1, 2), (2, 1), (2, 2), (3, 1), (1, 3))
ONE_VISION_GRIDS = tuple((rows, columns) for rows in range(1, 7) for columns in range(1, 7))
"""Grids of tiles, as rows and columns, from which the grid of an image is chosen."""


def keys(tower: VisionConfig, grids: tuple[tuple[int, int], ...] = ()) -> Table:
    """Entries of config.json besides its modules.

    Args:
        tower: The tower with all its blocks.
        grids: Grids of tiles that config.json lists, in pixels; empty where it lists none.
    """
    side = tower.grid * tower.patch
    pinpoints = {"image_grid_pinpoints": [[rows * side, columns * side] for rows, columns in grids]}
    return (
        # Outputs that become tokens: all but the first one, the class token's, or all.
        Fixed("vision_feature_select_strategy", "default" if tower.class_token else "full", written=True),
        Fixed("multimodal_projector_bias", True, written=True),
        mlp_projector(norm=False),
        feature_layer("vision_feature_layer", tower),
        IMAGE_TOKENS,
        Keys(write=lambda _: pinpoints if grids else {}),
    )


CLIP_TOWER = PublishedEncoder(
    prefix="vision_tower.",
    architectures=by_model_type(*clip.PUBLISHED, only=(CLIP,)),
    projector=lambda encoder: mlp_rules(f"{PROJECTOR}.linear_1", f"{PROJECTOR}.linear_2"),
    keys=keys,
    defaults={CLIP: VISION_DEFAULTS},
)
NEXT_TOWER = dataclasses.replace(CLIP_TOWER, keys=functools.partial(keys, grids=NEXT_GRIDS))
ONE_VISION_TOWER = dataclasses.replace(
    CLIP_TOWER,
    architectures=by_model_type(siglip.WITHOUT_NORM, only=("siglip_vision_model",)),
    keys=functools.partial(keys, grids=ONE_VISION_GRIDS),
    defaults={},
)
ANY_TOWER = dataclasses.replace(
    CLIP_TOWER, architectures={**CLIP_TOWER.architectures, **by_model_type(*pixtral.PUBLISHED)}
)
FORMAT = MultimodalFormat(
    encoders=(ANY_TOWER,),
    decoders=by_model_type(*llama.PUBLISHED, *qwen2.PUBLISHED, *mistral.PUBLISHED, *qwen3.PUBLISHED),
    decoder_defaults={"llama": TEXT_DEFAULTS, "mistral": MISTRAL_DEFAULTS},
    prepare=with_defaults({"vision_feature_select_strategy": "default", "vision_feature_layer": -2}),
    tying="either",
    own_aliases=PROJECTOR_ALIASES,
)
NEXT = dataclasses.replace(
    FORMAT,
    encoders=(NEXT_TOWER,),
    tying="model",
    newline=NEWLINE,
    own_aliases=(*PROJECTOR_ALIASES, (f"model.{NEWLINE}", NEWLINE)),
)
ONE_VISION = dataclasses.replace(
    NEXT,
    encoders=(ONE_VISION_TOWER,),
    decoders=by_model_type(*qwen2.PUBLISHED),
    decoder_defaults={},
    prepare=with_defaults({"vision_feature_select_strategy": "full"}),
    tying="either",
)
PUBLISHED = (
    FORMAT.published("LlavaForConditionalGeneration", ("llava",)),
    NEXT.published("LlavaNextForConditionalGeneration", ("llava_next",)),
    ONE_VISION.published("LlavaOnevisionForConditionalGeneration", ("llava_onevision",)),
)
