"""Audio encoders of Whisper's kind: Qwen2-Audio's (arXiv 2407.10759) and Qwen2.5-Omni's (arXiv 2503.20215).

Both average two positions before their final norm; one matmul projects the averages, of 40 ms each, to the backbone.
Qwen2-Audio pads every clip to 30 s as Whisper does, mmjax does not: they agree on clips of 30 s. Qwen2.5-Omni cuts
clips into chunks and pads none; they agree on clips of whole averages, and mmjax adds silence to others.
"""

from collections.abc import Iterator

from configs.architectures import AudioConfig
from configs.modules.projectors import LinearProjectorConfig
from mmjax.weights.published.encoders.audio.whisper import ENCODER_KEYS, encoder_rules
from mmjax.weights.published.key_table import Fields, Key
from mmjax.weights.published.rules import Rule, Rules, linear_rules
from mmjax.weights.published.table_architecture import table_architecture, with_defaults
from mmjax.weights.published.tensor_layouts import LINEAR

DEFAULTS = {
    "d_model": 1280,
    "encoder_layers": 32,
    "encoder_attention_heads": 20,
    "encoder_ffn_dim": 5120,
    "num_mel_bins": 128,
    "activation_function": "gelu",
}
"""Values that transformers assumes for both encoders where a file leaves them out."""

CHUNK = 100  # positions, of Qwen2.5-Omni where a file leaves it out


def projector_rules(tensor: str) -> Iterator[Rule]:
    """Rules of the projector, which a whole model has."""
    yield from linear_rules(tensor, "projector/linear", LINEAR, bias=True)


def rules_of_qwen2_audio(config: AudioConfig) -> Rules:
    """Rules of Qwen2-Audio's encoder."""
    return {config.name: encoder_rules(config, "", "layer_norm")}


def rules_of_omni(config: AudioConfig) -> Rules:
    """Rules of Qwen2.5-Omni's encoder."""
    return {config.name: encoder_rules(config, "", "ln_post")}


KEYS = (*ENCODER_KEYS, Fields({"merge": 2, "pool": 2, "projector": LinearProjectorConfig()}))

PUBLISHED = (
    table_architecture(
        "Qwen2AudioEncoder",
        ("qwen2_audio_encoder",),
        {"": AudioConfig},
        KEYS,
        prepare=with_defaults(DEFAULTS),
        rules=rules_of_qwen2_audio,
        ignored=lambda config: ("embed_positions.weight",),
    ),
    table_architecture(
        "Qwen2_5OmniAudioEncoder",
        ("qwen2_5_omni_audio_encoder",),
        {"": AudioConfig},
        (*KEYS, Key("n_window", "chunk", CHUNK)),  # half of a chunk's frames: its positions
        prepare=with_defaults(DEFAULTS),
        rules=rules_of_omni,
        ignored=lambda config: ("proj.*", "audio_bos_eos_token.weight"),
    ),
)
