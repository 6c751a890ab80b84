"""Whisper's encoder (arXiv 2212.04356), in `WhisperModel` of transformers; the decoder is ignored.

Its position table holds sinusoids, which are computed here for clips of any length; the table is copied and not read.
transformers pads every clip to 30 s, mmjax does not: they agree on clips of 30 s, and on shorter ones differ by the
attention to silence.
"""

import functools

from configs.architectures import AudioConfig
from mmjax.weights.published.activations import activation_key
from mmjax.weights.published.encoders.shared.vision_rules import SELF_ATTENTION_NAMES, block_rules
from mmjax.weights.published.key_table import Fields, Key, Keys, Unsupported
from mmjax.weights.published.rules import (
    Rule,
    Rules,
    linear_rules,
    norm_rules,
    require_round_trip,
)
from mmjax.weights.published.table_architecture import table_architecture, with_defaults
from mmjax.weights.published.tensor_layouts import CONVOLUTION_1D

NAMES = {
    "attention_norm": "self_attn_layer_norm",
    **SELF_ATTENTION_NAMES,
    "mlp_norm": "final_layer_norm",
    "mlp/up": "fc1",
    "mlp/down": "fc2",
}
"""Names in a block of the checkpoint, by the path in a block here."""

BIASES = ("query", "value", "output", "mlp")
POSITIONS = 1500  # positions of 30 s, the length of every clip in transformers
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
    """Makes the rules of an encoder of Whisper's kind, given its tensors' prefix and the name of its final norm."""
    return (
        *linear_rules(f"{prefix}conv1", "embed/first", CONVOLUTION_1D, bias=True),
        *linear_rules(f"{prefix}conv2", "embed/second", CONVOLUTION_1D, bias=True),
        *block_rules(f"{prefix}layers.{{layer}}", NAMES, config),
        *norm_rules(f"{prefix}{norm}", "norm/norm", bias=True),
    )


def rules(config: AudioConfig) -> Rules:
    """Rules of the encoder."""
    return {config.name: encoder_rules(config, "encoder.", "layer_norm")}


ENCODER_KEYS = (
    Unsupported("scale_embedding", "; only embeddings that are not scaled can be computed"),
    Key("d_model", "width"),
    Key("encoder_layers", "depth"),
    Key("encoder_attention_heads", "heads"),
    Key("encoder_ffn_dim", "ffn"),
    activation_key("activation_function"),
    Key("num_mel_bins", "mels"),
    Keys(write=lambda _: {"max_source_positions": POSITIONS}),
    Fields({"norm_epsilon": 1e-5, "biases": BIASES}),
)
"""Keys of encoders of Whisper's kind."""


def ignored(config: AudioConfig) -> tuple[str, ...]:
    """The position table, the decoder, and the heads of models for other tasks than transcription."""
    del config
    return ("encoder.embed_positions.weight", "decoder.*", "proj_out.*", "projector.*", "classifier.*", "layer_weights")


PUBLISHED = (
    table_architecture(
        "WhisperModel",
        ("whisper",),
        {"": AudioConfig},
        (*ENCODER_KEYS, Fields({"merge": 1})),
        prepare=with_defaults(DEFAULTS),
        require_same=functools.partial(require_round_trip, except_fields=("merge", "projector")),
        rules=rules,
        ignored=ignored,
        duplicates=lambda config: {"proj_out.weight": "decoder.embed_tokens.weight"},
        aliases=(("model.", ""),),
    ),
)
