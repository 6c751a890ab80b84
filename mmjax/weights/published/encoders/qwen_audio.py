"""Audio encoders of Whisper's kind: Qwen2-Audio's (arXiv 2407.10759) and Qwen2.5-Omni's (arXiv 2503.20215).

Both average two positions before their final norm; one matmul projects the averages, of 40 ms each, to the backbone.
Qwen2-Audio pads every clip to 30 s as Whisper does, mmjax does not: they agree on clips of 30 s. Qwen2.5-Omni cuts
clips into chunks and pads none; they agree on clips of whole averages, and mmjax adds silence to others.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from configs.architectures import AudioConfig
from configs.projectors import LinearProjectorConfig
from mmjax.weights.published.encoders.whisper import encoder_rules, read_encoder, write_encoder
from mmjax.weights.published.rules import PublishedArchitecture, Rule, Rules, linear_rules, require_round_trip
from mmjax.weights.published.tensor_layouts import LINEAR

DEFAULTS = {
    "d_model": 1280,
    "encoder_layers": 32,
    "encoder_attention_heads": 20,
    "encoder_ffn_dim": 5120,
    "num_mel_bins": 128,
    "activation_function": "gelu",
}
"""Values that transformers assumes of both where a file leaves them out."""

CHUNK = 100  # positions, of Qwen2.5-Omni where a file leaves it out
POOLED = {"merge": 2, "pool": 2, "projector": LinearProjectorConfig()}


def projector_rules(tensor: str) -> Iterator[Rule]:
    """Rules of the projector, which a whole model has."""
    yield from linear_rules(tensor, "projector/linear", LINEAR, bias=True)


def rules_of_qwen2_audio(config: AudioConfig) -> Rules:
    """Rules of Qwen2-Audio's encoder."""
    return {config.name: encoder_rules(config, "", "layer_norm")}


def read_qwen2_audio(values: Mapping[str, Any]) -> AudioConfig:
    """Reads transformers' Qwen2AudioEncoderConfig."""
    return read_encoder({**DEFAULTS, **values}, **POOLED)


def write_qwen2_audio(config: AudioConfig) -> dict[str, Any]:
    """Writes transformers' Qwen2AudioEncoderConfig."""
    values = write_encoder(config)
    require_round_trip(config, read_qwen2_audio(values))
    return values


def rules_of_omni(config: AudioConfig) -> Rules:
    """Rules of Qwen2.5-Omni's encoder."""
    return {config.name: encoder_rules(config, "", "ln_post")}


def read_omni(values: Mapping[str, Any]) -> AudioConfig:
    """Reads transformers' Qwen2_5OmniAudioEncoderConfig; `n_window` is half of a chunk's frames: its positions."""
    return read_encoder({**DEFAULTS, **values}, chunk=values.get("n_window", CHUNK), **POOLED)


def write_omni(config: AudioConfig) -> dict[str, Any]:
    """Writes transformers' Qwen2_5OmniAudioEncoderConfig, without the backbone's width (`output_dim`)."""
    values = {**write_encoder(config), "n_window": config.chunk}
    require_round_trip(config, read_omni(values))
    return values


PUBLISHED = (
    PublishedArchitecture(
        name="Qwen2AudioEncoder",
        model_types=("qwen2_audio_encoder",),
        config_type=AudioConfig,
        read_config=read_qwen2_audio,
        write_config=write_qwen2_audio,
        rules=rules_of_qwen2_audio,
        ignored=lambda config: ("embed_positions.weight",),
    ),
    PublishedArchitecture(
        name="Qwen2_5OmniAudioEncoder",
        model_types=("qwen2_5_omni_audio_encoder",),
        config_type=AudioConfig,
        read_config=read_omni,
        write_config=write_omni,
        rules=rules_of_omni,
        ignored=lambda config: ("proj.*", "audio_bos_eos_token.weight"),
    ),
)
