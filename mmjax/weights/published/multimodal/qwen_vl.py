"""Qwen2-VL (arXiv 2409.12191), Qwen2.5-VL (arXiv 2502.13923) and Qwen3-VL (arXiv 2511.21631), dense or with experts.

They are vision towers with patch mergers, and Qwen2's, Qwen3's and Qwen3-MoE's decoders. Positions count time, rows and
columns. Qwen3-VL adds features of several layers of the tower to the outputs of the decoder's first layers.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from configs.architectures import ModelConfig, VisionConfig
from mmjax.weights.published.decoders.dense import qwen2, qwen3
from mmjax.weights.published.decoders.experts import qwen3_vl_moe
from mmjax.weights.published.encoders.shared.qwen_towers import (
    MERGER_NAMES,
    QWEN3_MERGER_NAMES,
    MergerNames,
    merger_rules,
)
from mmjax.weights.published.encoders.vision import qwen2_5_vl, qwen2_vl, qwen3_vl
from mmjax.weights.published.multimodal.mrope import read_sections, write_sections
from mmjax.weights.published.multimodal.multimodal_format import MultimodalFormat, PublishedEncoder, Tying
from mmjax.weights.published.rules import PublishedArchitecture, Rule, with_prefix

TOWER = "visual."


@dataclasses.dataclass(frozen=True, kw_only=True)
class QwenVL:
    """One generation of models.

    Attributes:
        name: Name of transformers' class.
        model_type: `model_type` of config.json; with the suffix `_text`, `model_type` of its `text_config`.
        tower: The vision tower.
        merger: Names of the matmuls behind it.
        decoder: The decoder.
        other_decoder: The same decoder in files whose tensors have other shapes; None where there are none.
        tying: The object whose `tie_word_embeddings` ties the head.
        interleaved: Whether time, rows and columns take turns in the rotation of a head.
        tokens_per_second: Positions along time of a second of video where `vision_config` has no value; 0 for models
            that count groups of frames.
        width_key: Key of `vision_config` for the decoder's width.
    """

    name: str
    model_type: str
    tower: PublishedArchitecture
    merger: MergerNames
    decoder: PublishedArchitecture
    other_decoder: PublishedArchitecture | None = None
    tying: Tying
    interleaved: bool = False
    tokens_per_second: float = 0.0
    width_key: str = "out_hidden_size"

    @property
    def encoder(self) -> PublishedEncoder:
        """The tower with its mergers."""

        def projector_rules(encoder: VisionConfig) -> tuple[Rule, ...]:
            return with_prefix(merger_rules(encoder, self.merger), TOWER)

        names = (f"{self.model_type}_vision", self.model_type)  # the second in the files of its authors
        return PublishedEncoder(
            prefix=TOWER, architectures=dict.fromkeys(names, self.tower), projector=projector_rules, ignored=()
        )

    @property
    def format(self) -> MultimodalFormat:
        """The modules of a checkpoint and their names in it."""
        return MultimodalFormat(
            encoders=(self.encoder,),
            decoders=dict.fromkeys((f"{self.model_type}_text", self.model_type), self.decoder),
            decoder_prefix="",
            tying=self.tying,
        )

    def read_config(self, values: Mapping[str, Any]) -> ModelConfig:
        """Reads config.json, in which older files have the decoder's values beside `vision_config`.

        Raises:
            ValueError: A key has a value that cannot be computed.
        """
        sections, text = read_sections(values.get("text_config", values))
        speed = values["vision_config"].get("tokens_per_second", self.tokens_per_second)
        backbone = dataclasses.replace(
            self.format.read_decoder_config({**values, "text_config": text}),
            rope_sections=sections,
            rope_interleaved=self.interleaved,
            positions_per_second=float(speed) if self.tokens_per_second else 0.0,
        )
        return ModelConfig((self.encoder.read_config(values),), backbone, ())

    def write_config(self, model: ModelConfig) -> dict[str, Any]:
        """Writes config.json, without the ids of tokens of images."""
        (encoder,), backbone = model.encoders, model.backbone
        speed = {"tokens_per_second": round(backbone.positions_per_second)} if self.tokens_per_second else {}
        return {
            "vision_config": {**self.encoder.write_config(encoder), self.width_key: backbone.width, **speed},
            "text_config": write_sections(self.format.write_decoder_config(backbone), backbone),
        }

    @property
    def architecture(self) -> PublishedArchitecture:
        """The published architecture."""
        published = self.format.published(self.name, (self.model_type,), self.read_config, self.write_config)
        if self.other_decoder is None:
            return published
        other = dataclasses.replace(self, decoder=self.other_decoder, other_decoder=None).architecture
        return dataclasses.replace(published, alternatives=(other,))


PUBLISHED = (
    QwenVL(
        name="Qwen2VLForConditionalGeneration",
        model_type="qwen2_vl",
        tower=qwen2_vl.PUBLISHED[0],
        merger=MERGER_NAMES,
        decoder=qwen2.PUBLISHED[0],
        tying="either",
        width_key="hidden_size",
    ).architecture,
    QwenVL(
        name="Qwen2_5_VLForConditionalGeneration",
        model_type="qwen2_5_vl",
        tower=next(each for each in qwen2_5_vl.PUBLISHED if "qwen2_5_vl_vision" in each.model_types),
        merger=MERGER_NAMES,
        decoder=qwen2.PUBLISHED[0],
        tying="either",
        tokens_per_second=2.0,
    ).architecture,
    QwenVL(
        name="Qwen3VLForConditionalGeneration",
        model_type="qwen3_vl",
        tower=qwen3_vl.PUBLISHED[0],
        merger=QWEN3_MERGER_NAMES,
        decoder=qwen3.PUBLISHED[0],
        tying="model",
        interleaved=True,
    ).architecture,
    QwenVL(
        name="Qwen3VLMoeForConditionalGeneration",
        model_type="qwen3_vl_moe",
        tower=qwen3_vl.PUBLISHED[0],
        merger=QWEN3_MERGER_NAMES,
        decoder=qwen3_vl_moe.TEXT,
        other_decoder=qwen3_vl_moe.TEXT_OF_AUTHORS,
        tying="model",
        interleaved=True,
    ).architecture,
)
