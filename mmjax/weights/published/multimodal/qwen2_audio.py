"""Qwen2-Audio (arXiv 2407.10759): an audio encoder of Whisper's kind, one matmul, and Qwen2's decoder."""

from collections.abc import Mapping
from typing import Any

from configs.architectures import AudioConfig, ModelConfig
from mmjax.weights.published.decoders.dense import qwen2
from mmjax.weights.published.encoders.audio import qwen_audio
from mmjax.weights.published.multimodal.multimodal_format import MultimodalFormat, PublishedEncoder, by_model_type
from mmjax.weights.published.rules import Rule

PROJECTOR = "multi_modal_projector"

# Values that the files of Qwen2-Audio-7B leave out: the defaults of transformers for Qwen2.
TEXT_DEFAULTS = {
    "model_type": "qwen2",
    "vocab_size": 151936,
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "intermediate_size": 22016,
}


def projector_rules(encoder: AudioConfig) -> tuple[Rule, ...]:
    """Rules of the projector."""
    del encoder
    return tuple(qwen_audio.projector_rules(f"{PROJECTOR}.linear"))


(TOWER_ARCHITECTURE,) = (each for each in qwen_audio.PUBLISHED if "qwen2_audio_encoder" in each.model_types)
TOWER = PublishedEncoder(
    key="audio_config",
    prefix="audio_tower.",
    architectures=by_model_type(TOWER_ARCHITECTURE),
    projector=projector_rules,
    defaults=qwen_audio.DEFAULTS,
)
FORMAT = MultimodalFormat(
    encoders=(TOWER,),
    decoders=by_model_type(*qwen2.PUBLISHED),
    decoder_defaults=TEXT_DEFAULTS,
    tying="decoder",
    own_aliases=((f"model.{PROJECTOR}.", f"{PROJECTOR}."),),
)


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """Reads transformers' Qwen2AudioConfig."""
    return ModelConfig((TOWER.read_config(values),), FORMAT.read_decoder_config(values), ())


def write_config(model: ModelConfig) -> dict[str, Any]:
    """Writes transformers' Qwen2AudioConfig, without `audio_token_index`, whose default there is 151646."""
    (encoder,) = model.encoders
    return {
        "audio_config": TOWER.write_config(encoder),
        "text_config": FORMAT.write_decoder_config(model.backbone),
    }


PUBLISHED = (FORMAT.published("Qwen2AudioForConditionalGeneration", ("qwen2_audio",), read_config, write_config),)
