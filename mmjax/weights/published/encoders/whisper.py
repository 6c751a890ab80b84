"""Whisper's encoder (arXiv 2212.04356), a part of `WhisperModel` of transformers; the decoder is ignored.

Its position table holds sinusoids, which are computed here for clips of any length; the table is copied and not read.
transformers pads every clip to 30 s, mmjax does not: they agree on clips of 30 s, and on shorter ones differ by the
attention to silence.
"""

from collections.abc import Mapping
from typing import Any

from configs.architectures import AudioConfig
from mmjax.weights.published.encoders.vision_transformer import ACTIVATIONS, block_rules, published_activation
from mmjax.weights.published.rules import (
    PublishedArchitecture,
    Rule,
    Rules,
    linear_rules,
    norm_rules,
    require_round_trip,
)
from mmjax.weights.published.tensor_layouts import CONVOLUTION_1D

NAMES = {
    "attention_norm": "self_attn_layer_norm",
    "attention/query": "self_attn.q_proj",
    "attention/key": "self_attn.k_proj",
    "attention/value": "self_attn.v_proj",
    "attention/output": "self_attn.out_proj",
    "mlp_norm": "final_layer_norm",
    "mlp/up": "fc1",
    "mlp/down": "fc2",
}
"""Names in a block of the checkpoint, by the path in a block here."""

BIASES = ("query", "value", "output", "mlp")
POSITIONS = 1500  # of 30 s, the length of every clip in transformers
DEFAULTS = {
    "d_model": 384,
    "encoder_layers": 4,
    "encoder_attention_heads": 6,
    "encoder_ffn_dim": 1536,
    "num_mel_bins": 80,
    "activation_function": "gelu",
}
"""Values that transformers assumes where a file leaves them out."""


def encoder_rules(config: AudioConfig, prefix: str, norm: str) -> tuple[Rule, ...]:
    """Rules of an encoder of Whisper's kind: its tensors' prefix, and the name of its final norm."""
    return (
        *linear_rules(f"{prefix}conv1", "embed/first", CONVOLUTION_1D, bias=True),
        *linear_rules(f"{prefix}conv2", "embed/second", CONVOLUTION_1D, bias=True),
        *block_rules(f"{prefix}layers.{{layer}}", NAMES, config),
        *norm_rules(f"{prefix}{norm}", "norm/norm", bias=True),
    )


def rules(config: AudioConfig) -> Rules:
    """Rules of the encoder."""
    return {config.name: encoder_rules(config, "encoder.", "layer_norm")}


def read_encoder(values: Mapping[str, Any], **fields: Any) -> AudioConfig:
    """The configuration of an encoder of Whisper's kind, by transformers' keys for it.

    Args:
        values: Contents of config.json with its defaults.
        **fields: Fields of the configuration that these keys do not describe.

    Raises:
        ValueError: A value cannot be computed.
    """
    if values.get("scale_embedding"):
        raise ValueError("scale_embedding is true; only embeddings that are not scaled can be computed")
    if values["activation_function"] not in ACTIVATIONS:
        raise ValueError(
            f"activation_function is {values['activation_function']!r}; choose one of {', '.join(ACTIVATIONS)}"
        )
    return AudioConfig(
        width=values["d_model"],
        depth=values["encoder_layers"],
        heads=values["encoder_attention_heads"],
        ffn=values["encoder_ffn_dim"],
        norm_epsilon=1e-5,
        activation=ACTIVATIONS[values["activation_function"]],
        biases=BIASES,
        mels=values["num_mel_bins"],
        **fields,
    )


def read_config(values: Mapping[str, Any]) -> AudioConfig:
    """Reads transformers' WhisperConfig.

    Raises:
        ValueError: A value cannot be computed.
    """
    return read_encoder({**DEFAULTS, **values}, merge=1)


def write_encoder(config: AudioConfig) -> dict[str, Any]:
    """The keys that `read_encoder` reads, and the number of positions."""
    return {
        "d_model": config.width,
        "encoder_layers": config.depth,
        "encoder_attention_heads": config.heads,
        "encoder_ffn_dim": config.ffn,
        "activation_function": published_activation(config.activation),
        "num_mel_bins": config.mels,
        "max_source_positions": POSITIONS,
    }


def write_config(config: AudioConfig) -> dict[str, Any]:
    """Writes transformers' WhisperConfig, without the decoder."""
    values = write_encoder(config)
    require_round_trip(config, read_config(values), ("merge", "projector"))
    return values


def ignored(config: AudioConfig) -> tuple[str, ...]:
    """The position table, the decoder, and the heads of models for other tasks than transcription."""
    del config
    return ("encoder.embed_positions.weight", "decoder.*", "proj_out.*", "projector.*", "classifier.*", "layer_weights")


PUBLISHED = (
    PublishedArchitecture(
        name="WhisperModel",
        model_types=("whisper",),
        config_type=AudioConfig,
        read_config=read_config,
        write_config=write_config,
        rules=rules,
        ignored=ignored,
        duplicates=lambda config: {"proj_out.weight": "decoder.embed_tokens.weight"},
        aliases=(("model.", ""),),
    ),
)
