"""Qwen2.5-Omni (arXiv 2503.20215): Qwen2.5-VL's vision tower, an audio encoder, and Qwen2's decoder: the thinker.

The talker and the vocoder, which speak its answers, are not read; an export copies them. Sounds are laid out like text:
each of their tokens takes the next position. The tokens of a clip and of its own sound take no turns in time.
"""

import dataclasses
from typing import Any

from configs.architectures import ModelConfig
from mmjax.weights.published.decoders.dense import qwen2
from mmjax.weights.published.encoders.audio import qwen_audio
from mmjax.weights.published.encoders.shared.qwen_towers import MERGER_NAMES, merger_rules
from mmjax.weights.published.encoders.vision import qwen2_5_vl
from mmjax.weights.published.key_table import Key, Keys, Nested, Values
from mmjax.weights.published.multimodal.multimodal_format import MultimodalFormat, PublishedEncoder, by_model_type
from mmjax.weights.published.rules import with_prefix

VISION, AUDIO = "visual.", "audio_tower."
TOKENS_PER_SECOND = 25


VISION_TOWER = PublishedEncoder(
    prefix=VISION,
    architectures=by_model_type(*qwen2_5_vl.PUBLISHED, only=("qwen2_5_omni_vision_encoder",)),
    projector=lambda encoder: with_prefix(merger_rules(encoder, MERGER_NAMES), VISION),
    ignored=(),
)
AUDIO_TOWER = PublishedEncoder(
    key="audio_config",
    prefix=AUDIO,
    architectures=by_model_type(*qwen_audio.PUBLISHED, only=("qwen2_5_omni_audio_encoder",)),
    projector=lambda encoder: qwen_audio.projector_rules(f"{AUDIO}proj"),
    ignored=("audio_bos_eos_token.weight",),
)
BACKBONE_KEYS = (
    Key("position_id_per_seconds", "positions_per_second", TOKENS_PER_SECOND, float, round),
    Nested("vision_config", (Keys(write=lambda backbone: {"out_hidden_size": backbone.width}),)),
    Nested("audio_config", (Keys(write=lambda backbone: {"output_dim": backbone.width}),)),
)
THINKER = MultimodalFormat(
    encoders=(VISION_TOWER, AUDIO_TOWER),
    decoders={"qwen2_5_omni_text": qwen2.PUBLISHED[0]},
    decoder_prefix="",
    keys=lambda backbone: BACKBONE_KEYS,
    sections=True,
)
WHOLE = dataclasses.replace(THINKER, prefix="thinker.", ignored_tensors=("talker.*", "token2wav.*"))


def read_config(values: Values) -> ModelConfig:
    """Reads transformers' Qwen2_5OmniConfig.

    Raises:
        ValueError: A key has a value that cannot be computed.
    """
    return THINKER.read_config({**values, **values["thinker_config"]})


def write_config(model: ModelConfig) -> dict[str, Any]:
    """Writes transformers' Qwen2_5OmniConfig of a model that does not speak."""
    thinker = {"model_type": "qwen2_5_omni_thinker", **THINKER.write_config(model)}
    return {"enable_audio_output": False, "thinker_config": thinker}


PUBLISHED = (
    THINKER.published("Qwen2_5OmniThinkerForConditionalGeneration", ("qwen2_5_omni_thinker",)),
    dataclasses.replace(
        WHOLE.published("Qwen2_5OmniForConditionalGeneration", ("qwen2_5_omni",)),
        read_config=read_config,
        write_config=write_config,
    ),
)
