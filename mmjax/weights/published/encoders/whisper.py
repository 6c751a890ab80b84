"""Whisper's encoder (arXiv 2212.04356), as `WhisperModel` of transformers names it; what decodes is left alone.

Its table of positions holds sines that are computed here for clips of any length, so it is kept and not read. Theirs
hears every clip padded to 30 s, ours the clip alone: they agree on clips of 30 s, and differ by attention to silence.
"""

from collections.abc import Mapping
from typing import Any

from configs.architectures import AudioConfig
from mmjax.weights.published.encoders.vision_transformer import ACTIVATIONS, block_rules
from mmjax.weights.published.round_trip import require_round_trip
from mmjax.weights.published.rules import PublishedArchitecture, Rules, linear_rules, norm_rules
from mmjax.weights.published.tensor_layouts import CONVOLUTION_1D

BLOCK = "encoder.layers.{layer}"
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
"""By the path in our block, the name in theirs."""

BIASES = ("query", "value", "output", "mlp")
POSITIONS = 1500  # of 30 s, which every published encoder hears at once
DEFAULTS = {
    "d_model": 384,
    "encoder_layers": 4,
    "encoder_attention_heads": 6,
    "encoder_ffn_dim": 1536,
    "num_mel_bins": 80,
    "activation_function": "gelu",
}
"""What transformers takes where a file says nothing."""


def rules(config: AudioConfig) -> Rules:
    """The encoder's."""
    found = (
        *linear_rules("encoder.conv1", "embed/first", CONVOLUTION_1D, bias=True),
        *linear_rules("encoder.conv2", "embed/second", CONVOLUTION_1D, bias=True),
        *block_rules(BLOCK, NAMES, config),
        *norm_rules("encoder.layer_norm", "norm/norm", bias=True),
    )
    return {config.name: found}


def read_config(values: Mapping[str, Any]) -> AudioConfig:
    """Of transformers' WhisperConfig.

    Raises:
        ValueError: An activation that can't be computed.
    """
    of = {**DEFAULTS, **values}
    if of["activation_function"] not in ACTIVATIONS:
        raise ValueError(
            f"activation_function is {of['activation_function']!r}; choose one of {', '.join(ACTIVATIONS)}"
        )
    return AudioConfig(
        width=of["d_model"],
        depth=of["encoder_layers"],
        heads=of["encoder_attention_heads"],
        ffn=of["encoder_ffn_dim"],
        norm_epsilon=1e-5,
        activation=ACTIVATIONS[of["activation_function"]],
        biases=BIASES,
        mels=of["num_mel_bins"],
        merge=1,
    )


def write_config(config: AudioConfig) -> dict[str, Any]:
    """For transformers' WhisperConfig; of the decoder nothing is said."""
    called = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    values = {
        "d_model": config.width,
        "encoder_layers": config.depth,
        "encoder_attention_heads": config.heads,
        "encoder_ffn_dim": config.ffn,
        "activation_function": called[config.activation],
        "num_mel_bins": config.mels,
        "max_source_positions": POSITIONS,
    }
    require_round_trip(config, read_config(values), ("merge", "projector"))
    return values


def ignored(config: AudioConfig) -> tuple[str, ...]:
    """Positions, the decoder, and the heads of those who hear and do not write."""
    del config
    return ("encoder.embed_positions.weight", "decoder.*", "proj_out.*", "projector.*", "classifier.*", "layer_weights")


PUBLISHED = (
    PublishedArchitecture(
        "WhisperModel",
        ("whisper",),
        AudioConfig,
        read_config,
        write_config,
        rules,
        ignored,
        duplicates=lambda config: {"proj_out.weight": "decoder.embed_tokens.weight"},
        aliases=(("model.", ""),),
    ),
)
