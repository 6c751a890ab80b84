"""Qwen2.5-Omni (arXiv 2503.20215): Qwen2.5-VL's vision tower, an audio encoder, and Qwen2's decoder: the thinker.

The talker and the vocoder, which speak its answers, are not read; an export copies them. Sounds are laid out like text:
each of their tokens takes the next position. The tokens of a clip and of its own sound take no turns in time.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from configs.architectures import AudioConfig, ModelConfig, VisionConfig
from mmjax.weights.published.decoders.dense import qwen2
from mmjax.weights.published.encoders.audio import qwen_audio
from mmjax.weights.published.encoders.shared.qwen_towers import MERGER_NAMES, merger_rules
from mmjax.weights.published.encoders.vision import qwen2_5_vl
from mmjax.weights.published.multimodal.mrope import read_sections, write_sections
from mmjax.weights.published.multimodal.multimodal_format import MultimodalFormat, PublishedEncoder
from mmjax.weights.published.rules import Rule, with_prefix

VISION, AUDIO = "visual.", "audio_tower."
TOKENS_PER_SECOND = 25


def vision_projector(encoder: VisionConfig) -> tuple[Rule, ...]:
    """Rules of the patch merger."""
    return with_prefix(merger_rules(encoder, MERGER_NAMES), VISION)


def audio_projector(encoder: AudioConfig) -> tuple[Rule, ...]:
    """Rules of the matmul behind the audio encoder."""
    del encoder
    return with_prefix(qwen_audio.projector_rules("proj"), AUDIO)


VISION_TOWER = PublishedEncoder(
    prefix=VISION,
    architectures={name: each for each in qwen2_5_vl.PUBLISHED for name in each.model_types if "qwen2_5_omni" in name},
    projector=vision_projector,
    ignored=(),
)
AUDIO_TOWER = PublishedEncoder(
    key="audio_config",
    prefix=AUDIO,
    architectures={name: each for each in qwen_audio.PUBLISHED for name in each.model_types if "qwen2_5_omni" in name},
    projector=audio_projector,
    ignored=("audio_bos_eos_token.weight",),
)
THINKER = MultimodalFormat(
    encoders=(VISION_TOWER, AUDIO_TOWER),
    decoders={"qwen2_5_omni_text": qwen2.PUBLISHED[0]},
    decoder_prefix="",
)
WHOLE = dataclasses.replace(THINKER, prefix="thinker.", ignored_tensors=("talker.*", "token2wav.*"))


def read_thinker(values: Mapping[str, Any]) -> ModelConfig:
    """Reads transformers' Qwen2_5OmniThinkerConfig.

    Raises:
        ValueError: A key has a value that cannot be computed.
    """
    sections, text = read_sections(values["text_config"])
    backbone = dataclasses.replace(
        THINKER.read_decoder_config({**values, "text_config": text}),
        rope_sections=sections,
        positions_per_second=float(values.get("position_id_per_seconds", TOKENS_PER_SECOND)),
    )
    return ModelConfig((VISION_TOWER.read_config(values), AUDIO_TOWER.read_config(values)), backbone, ())


def write_thinker(model: ModelConfig) -> dict[str, Any]:
    """Writes transformers' Qwen2_5OmniThinkerConfig, without the ids of tokens of images and sounds."""
    (vision, audio), backbone = model.encoders, model.backbone
    return {
        "vision_config": {**VISION_TOWER.write_config(vision), "out_hidden_size": backbone.width},
        "audio_config": {**AUDIO_TOWER.write_config(audio), "output_dim": backbone.width},
        "text_config": write_sections(THINKER.write_decoder_config(backbone), backbone),
        "position_id_per_seconds": round(backbone.positions_per_second),
    }


THINKER_ARCHITECTURE = THINKER.published(
    "Qwen2_5OmniThinkerForConditionalGeneration", ("qwen2_5_omni_thinker",), read_thinker, write_thinker
)


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """Reads transformers' Qwen2_5OmniConfig.

    Raises:
        ValueError: A key has a value that cannot be computed.
    """
    return read_thinker({**values, **values["thinker_config"]})


def write_config(model: ModelConfig) -> dict[str, Any]:
    """Writes transformers' Qwen2_5OmniConfig of a model that does not speak."""
    thinker = {"model_type": "qwen2_5_omni_thinker", **THINKER_ARCHITECTURE.write_config(model)}
    return {"enable_audio_output": False, "thinker_config": thinker}


PUBLISHED = (
    THINKER_ARCHITECTURE,
    dataclasses.replace(
        WHOLE.published("Qwen2_5OmniForConditionalGeneration", ("qwen2_5_omni",), read_thinker, write_thinker),
        read_config=read_config,
        write_config=write_config,
    ),
)
