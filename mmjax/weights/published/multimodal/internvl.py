"""InternVL (arXiv 2404.16821): its authors' `InternVLChatModel`, and transformers' `InternVLForConditionalGeneration`.

Squares of 2 x 2 patches of InternViT pass through a norm and two matmuls into the tokens of a decoder. The pixel
shuffle joins the patches of a square row by row, which is their order here too, so that no weight has to be permuted.
"""

from typing import Any

from configs.architectures import VisionConfig
from configs.modules.projectors import MLPProjectorConfig
from mmjax.weights.published.decoders.dense import internlm2, llama, qwen2, qwen3
from mmjax.weights.published.decoders.experts import qwen3_moe
from mmjax.weights.published.encoders.vision import internvit
from mmjax.weights.published.key_table import Fields, Fixed, Keys, Table, Values
from mmjax.weights.published.multimodal.multimodal_format import MultimodalFormat, PublishedEncoder, by_model_type
from mmjax.weights.published.multimodal.projector_keys import (
    IMAGE_TOKENS,
    PROJECTOR,
    PROJECTOR_ALIASES,
    feature_layer,
    mlp_projector,
    mlp_rules,
    pixel_shuffle,
)
from mmjax.weights.published.rules import PublishedArchitecture, Rule, norm_rules

DECODERS = (*qwen2.PUBLISHED, *qwen3.PUBLISHED, *qwen3_moe.PUBLISHED, *llama.PUBLISHED)
CHAT_DECODERS = (*internlm2.PUBLISHED, *DECODERS)
"""Decoders of the authors' own format: InternVL 1.5 to 3.5."""


def projector_rules(norm: str, up: str, down: str) -> tuple[Rule, ...]:
    """Rules of the projector by the names of its norm and its two matmuls."""
    return (*norm_rules(norm, "projector/norm", bias=True), *mlp_rules(up, down))


def keys(tower: VisionConfig) -> Table:
    """Entries of transformers' InternVLConfig besides its modules."""
    return (
        pixel_shuffle("downsample_ratio"),
        mlp_projector(norm=True),
        feature_layer("vision_feature_layer", tower),
        Fixed("vision_feature_select_strategy", "default", written=True),
        IMAGE_TOKENS,
    )


TOWER = PublishedEncoder(
    prefix="vision_tower.",
    architectures=by_model_type(internvit.TRANSFORMERS),
    projector=lambda encoder: projector_rules(
        f"{PROJECTOR}.layer_norm", f"{PROJECTOR}.linear_1", f"{PROJECTOR}.linear_2"
    ),
    keys=keys,
)
FORMAT = MultimodalFormat(
    encoders=(TOWER,),
    decoders=by_model_type(*DECODERS),
    tied_by_default=True,
    own_aliases=PROJECTOR_ALIASES,
)


def read_version(values: Values) -> dict[str, Any]:
    """Returns no field; raises ValueError for a pixel shuffle that cannot be computed."""
    if values.get("ps_version", "v1") != "v2":
        raise ValueError("ps_version is 'v1', which transposes rows and columns of a map; only 'v2' can be computed")
    return {}


def chat_keys(tower: VisionConfig) -> Table:
    """Entries of the authors' InternVLChatConfig besides its modules."""
    return (
        Keys(write=lambda _: {"architectures": ["InternVLChatModel"], "model_type": "internvl_chat"}),
        Keys(read_version, lambda _: {"ps_version": "v2"}),
        pixel_shuffle("downsample_ratio"),
        feature_layer("select_layer", tower),
        Keys(write=lambda encoder: {"force_image_size": encoder.grid * encoder.patch}),
        Fields({"projector": MLPProjectorConfig(norm=True, activation="gelu")}),
    )


CHAT_TOWER = PublishedEncoder(
    prefix="vision_model.",
    architectures=by_model_type(internvit.ORIGINAL),
    projector=lambda encoder: projector_rules("mlp1.0", "mlp1.1", "mlp1.3"),
    keys=chat_keys,
)


def chat_model(decoder: PublishedArchitecture) -> PublishedArchitecture:
    """Makes the authors' own format with one of the decoders.

    The names of tensors depend on the decoder, which a ModelConfig does not name; so each decoder is an architecture of
    its own. `registry.model_type_of` makes its model type from config.json.
    """
    chat = MultimodalFormat(
        encoders=(CHAT_TOWER,),
        decoders=by_model_type(decoder),
        decoder_key="llm_config",
        tying="decoder",
    )
    return chat.published(f"InternVLChatModel of {decoder.name}", (f"internvl_chat/{decoder.model_types[0]}",))


PUBLISHED = (
    FORMAT.published("InternVLForConditionalGeneration", ("internvl",)),
    *map(chat_model, CHAT_DECODERS),
)
