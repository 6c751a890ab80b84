"""Qwen2-Audio (arXiv 2407.10759): an audio encoder of Whisper's kind, one matmul, and Qwen2's decoder."""

from mmjax.weights.published.decoders.dense import qwen2
from mmjax.weights.published.encoders.audio import qwen_audio
from mmjax.weights.published.multimodal.multimodal_format import MultimodalFormat, PublishedEncoder, by_model_type
from mmjax.weights.published.multimodal.projector_keys import PROJECTOR, PROJECTOR_ALIASES

# Values that the files of Qwen2-Audio-7B leave out: the defaults of transformers for Qwen2.
TEXT_DEFAULTS = {
    "vocab_size": 151936,
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "intermediate_size": 22016,
}


TOWER = PublishedEncoder(
    key="audio_config",
    prefix="audio_tower.",
    architectures=by_model_type(*qwen_audio.PUBLISHED, only=("qwen2_audio_encoder",)),
    projector=lambda encoder: qwen_audio.projector_rules(f"{PROJECTOR}.linear"),
    defaults={"qwen2_audio_encoder": qwen_audio.DEFAULTS},
)
FORMAT = MultimodalFormat(
    encoders=(TOWER,),
    decoders=by_model_type(*qwen2.PUBLISHED),
    decoder_defaults={"qwen2": TEXT_DEFAULTS},
    tying="decoder",
    own_aliases=PROJECTOR_ALIASES,
)
PUBLISHED = (FORMAT.published("Qwen2AudioForConditionalGeneration", ("qwen2_audio",)),)
