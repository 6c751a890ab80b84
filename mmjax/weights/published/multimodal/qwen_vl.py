"""Qwen2-VL (arXiv 2409.12191), Qwen2.5-VL (arXiv 2502.13923) and Qwen3-VL (arXiv 2511.21631), dense or with experts.

They are vision towers with patch mergers, and Qwen2's, Qwen3's and Qwen3-MoE's decoders. Positions count time, rows and
columns. Qwen3-VL adds features of several layers of the tower to the outputs of the decoder's first layers.
"""

import dataclasses

from mmjax.weights.published.decoders.dense import qwen2, qwen3
from mmjax.weights.published.decoders.experts import qwen3_vl_moe
from mmjax.weights.published.encoders.shared.qwen_towers import (
    MERGER_NAMES,
    QWEN3_MERGER_NAMES,
    MergerNames,
    merger_rules,
)
from mmjax.weights.published.encoders.vision import qwen2_5_vl, qwen2_vl, qwen3_vl
from mmjax.weights.published.key_table import Fields, Key, Keys, Nested
from mmjax.weights.published.multimodal.multimodal_format import MultimodalFormat, PublishedEncoder, Tying
from mmjax.weights.published.rules import PublishedArchitecture, with_prefix

TOWER = "visual."


def qwen_vl(
    name: str,
    model_type: str,
    *,
    tower: PublishedArchitecture,
    merger: MergerNames,
    decoders: tuple[PublishedArchitecture, ...],
    tying: Tying,
    interleaved: bool = False,
    tokens_per_second: float = 0.0,
    width_key: str = "out_hidden_size",
) -> PublishedArchitecture:
    """Makes one generation of models.

    Args:
        name: Name of transformers' class.
        model_type: `model_type` of config.json; with the suffix `_text`, `model_type` of its `text_config`.
        tower: The vision tower.
        merger: Names of the matmuls behind it.
        decoders: The decoder, and the same decoder in files whose tensors have other shapes.
        tying: The object whose `tie_word_embeddings` ties the head.
        interleaved: Whether time, rows and columns take turns in the rotation of a head.
        tokens_per_second: Positions along time of a second of video where `vision_config` has no value; 0 for models
            that count groups of frames.
        width_key: Key of `vision_config` for the decoder's width.
    """
    width = Keys(write=lambda backbone: {width_key: backbone.width})
    speed = Key("tokens_per_second", "positions_per_second", tokens_per_second, float, round)
    own_keys = (
        Nested("vision_config", (width, speed) if tokens_per_second else (width,)),
        Fields({"rope_interleaved": interleaved}),
    )
    # The second names are in the files of its authors.
    encoder = PublishedEncoder(
        prefix=TOWER,
        architectures=dict.fromkeys((f"{model_type}_vision", model_type), tower),
        projector=lambda encoder: with_prefix(merger_rules(encoder, merger), TOWER),
        ignored=(),
    )
    published, *others = (
        MultimodalFormat(
            encoders=(encoder,),
            decoders=dict.fromkeys((f"{model_type}_text", model_type), decoder),
            decoder_prefix="",
            keys=lambda backbone: own_keys,
            sections=True,
            prepare=lambda values: {"text_config": values, **values},  # older files have it beside `vision_config`
            tying=tying,
        ).published(name, (model_type,))
        for decoder in decoders
    )
    return dataclasses.replace(published, alternatives=tuple(others))


PUBLISHED = (
    qwen_vl(
        "Qwen2VLForConditionalGeneration",
        "qwen2_vl",
        tower=qwen2_vl.PUBLISHED[0],
        merger=MERGER_NAMES,
        decoders=(qwen2.PUBLISHED[0],),
        tying="either",
        width_key="hidden_size",
    ),
    qwen_vl(
        "Qwen2_5_VLForConditionalGeneration",
        "qwen2_5_vl",
        tower=next(each for each in qwen2_5_vl.PUBLISHED if "qwen2_5_vl_vision" in each.model_types),
        merger=MERGER_NAMES,
        decoders=(qwen2.PUBLISHED[0],),
        tying="either",
        tokens_per_second=2.0,
    ),
    qwen_vl(
        "Qwen3VLForConditionalGeneration",
        "qwen3_vl",
        tower=qwen3_vl.PUBLISHED[0],
        merger=QWEN3_MERGER_NAMES,
        decoders=(qwen3.PUBLISHED[0],),
        tying="model",
        interleaved=True,
    ),
    qwen_vl(
        "Qwen3VLMoeForConditionalGeneration",
        "qwen3_vl_moe",
        tower=qwen3_vl.PUBLISHED[0],
        merger=QWEN3_MERGER_NAMES,
        decoders=(qwen3_vl_moe.TEXT, qwen3_vl_moe.TEXT_OF_AUTHORS),
        tying="model",
        interleaved=True,
    ),
)
