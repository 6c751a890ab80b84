"""Qwen2.5-VL (arXiv 2502.13923) and Qwen3-VL: their vision towers with patch mergers, and Qwen2's and Qwen3's decoders.

Positions count time, rows and columns. Qwen3-VL adds features of several layers of the tower to the outputs of the
decoder's first layers.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from configs.architectures import BackboneConfig, ModelConfig
from mmjax.weights.published.decoders import qwen2, qwen3
from mmjax.weights.published.encoders import qwen2_5_vl_vision, qwen3_vl_vision
from mmjax.weights.published.encoders.qwen_vision import (
    MERGER_NAMES,
    QWEN3_MERGER_NAMES,
    MergerNames,
    merger_rules,
)
from mmjax.weights.published.multimodal.vision_language import PIXEL_FIELDS, require_vision_language_model
from mmjax.weights.published.rules import (
    PublishedArchitecture,
    Rules,
    require_round_trip,
    with_first_layers,
    with_prefix,
)

TOWER = "visual."
ALIASES = (("model.visual.", TOWER), ("model.language_model.", "model."))
"""Prefixes of Qwen3-VL's files, and of version 5 of transformers in memory."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class QwenVL:
    """One generation of models.

    Attributes:
        name: Name of transformers' class.
        model_type: `model_type` of config.json, with `_text` that of its `text_config`.
        tower: The vision tower.
        merger: Names of the matmuls behind it.
        decoder: The decoder.
        interleaved: Whether time, rows and columns take turns in the rotation of a head.
    """

    name: str
    model_type: str
    tower: PublishedArchitecture
    merger: MergerNames
    decoder: PublishedArchitecture
    interleaved: bool

    def read_config(self, values: Mapping[str, Any]) -> ModelConfig:
        """Reads config.json, in which older files have the decoder's values beside `vision_config`.

        Raises:
            ValueError: A key has a value that cannot be computed.
        """
        pixels = {key: values[key] for key in ("image_mean", "image_std") if key in values}
        tied = {key: values[key] for key in ("tie_word_embeddings",) if key in values}
        text = {**values, **values.get("text_config", {}), **tied}
        rotary = dict(text.get("rope_parameters") or text.get("rope_scaling") or {})
        sections = rotary.pop("mrope_section", None)
        if not sections:
            raise ValueError("rope_parameters has no mrope_section; positions of time, row and column need it")
        kind = rotary.get("rope_type", rotary.get("type", "default"))
        plain = {**rotary, "rope_type": "default" if kind == "mrope" else kind}
        backbone = self.decoder.read_config({**text, "rope_parameters": plain})
        vision = values["vision_config"]
        backbone = dataclasses.replace(
            backbone,
            rope_sections=tuple(sections),
            rope_interleaved=self.interleaved,
            positions_per_second=0.0 if self.interleaved else float(vision.get("tokens_per_second", 2)),
        )
        return ModelConfig((self.tower.read_config({**pixels, **vision}),), backbone, ())

    def write_config(self, model: ModelConfig) -> dict[str, Any]:
        """Writes config.json, without the ids of tokens of images."""
        encoder, backbone = require_vision_language_model(model), model.backbone
        text = self.decoder.write_config(self._plain(backbone))
        base = text.pop("rope_theta")
        scaling = {**text.pop("rope_scaling", {"rope_type": "default"}), "mrope_section": list(backbone.rope_sections)}
        interleaved = {"mrope_interleaved": True} if self.interleaved else {}
        text |= {"rope_theta": base, "rope_scaling": {**scaling, **interleaved}}
        speed = {} if self.interleaved else {"tokens_per_second": round(backbone.positions_per_second)}
        vision = {**self.tower.write_config(encoder), "out_hidden_size": backbone.width, **speed}
        values = {
            "vision_config": {"model_type": self.tower.model_types[0], **vision},
            "text_config": {"model_type": f"{self.model_type}_text", **text},
            "tie_word_embeddings": backbone.tie_embeddings,
        }
        read_back = self.read_config(values)
        require_round_trip(encoder, require_vision_language_model(read_back), PIXEL_FIELDS)
        require_round_trip(backbone, read_back.backbone)
        return values

    def rules(self, model: ModelConfig) -> Rules:
        """Rules of the tower, its mergers and the decoder, whose first layers are pieces of their own."""
        encoder, backbone = require_vision_language_model(model), model.backbone
        tower = (*self.tower.rules(encoder)[encoder.name], *merger_rules(encoder, self.merger))
        early = [f"early_{layer}" for layer in range(model.early_blocks)]
        decoder = self.decoder.rules(backbone)[backbone.name]
        return {
            encoder.name: with_prefix(tower, TOWER),
            backbone.name: with_first_layers(decoder, "blocks", early) if early else decoder,
        }

    def ignored(self, model: ModelConfig) -> tuple[str, ...]:
        """Ignored tensors of the decoder; the mergers are no part of a tower alone, but of a whole model."""
        return self.decoder.ignored(model.backbone)

    def duplicates(self, model: ModelConfig) -> Mapping[str, str]:
        """Duplicates of the decoder."""
        return self.decoder.duplicates(model.backbone)

    @staticmethod
    def _plain(backbone: BackboneConfig) -> BackboneConfig:
        """The backbone with positions along the text alone, as its decoder describes it."""
        return dataclasses.replace(backbone, rope_sections=(), rope_interleaved=False, positions_per_second=0.0)

    @property
    def architecture(self) -> PublishedArchitecture:
        """The published architecture."""
        return PublishedArchitecture(
            name=self.name,
            model_types=(self.model_type,),
            config_type=ModelConfig,
            read_config=self.read_config,
            write_config=self.write_config,
            rules=self.rules,
            ignored=self.ignored,
            duplicates=self.duplicates,
            aliases=ALIASES,
        )


PUBLISHED = (
    QwenVL(
        name="Qwen2_5_VLForConditionalGeneration",
        model_type="qwen2_5_vl",
        tower=next(each for each in qwen2_5_vl_vision.PUBLISHED if "qwen2_5_vl_vision" in each.model_types),
        merger=MERGER_NAMES,
        decoder=qwen2.PUBLISHED[0],
        interleaved=False,
    ).architecture,
    QwenVL(
        name="Qwen3VLForConditionalGeneration",
        model_type="qwen3_vl",
        tower=qwen3_vl_vision.PUBLISHED[0],
        merger=QWEN3_MERGER_NAMES,
        decoder=qwen3.PUBLISHED[0],
        interleaved=True,
    ).architecture,
)
