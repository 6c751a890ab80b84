"""LLaVA-1.5 (arXiv 2310.03744) and LLaVA-NeXT, as transformers names them: CLIP's tower, a projector and a decoder.

Of LLaVA-NeXT the weights are read, but images become tokens in another way. LLaVA-NeXT lays the tiles of an image out
as one map, crops the padding, and ends every row of the map with the learned vector `image_newline`. Here tiles follow
one another (`data.media.tiling`), and an export copies that vector.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from configs.architectures import ModelConfig
from configs.projectors import MLPProjectorConfig
from mmjax.weights.published.decoders import llama, mistral, qwen2, qwen3
from mmjax.weights.published.decoders.llama_like import first_matching_decoder
from mmjax.weights.published.encoders import clip
from mmjax.weights.published.encoders.vision_transformer import (
    ACTIVATIONS,
    published_activation,
    unused_block_count,
)
from mmjax.weights.published.multimodal.vision_language import PIXEL_FIELDS, require_vision_language_model
from mmjax.weights.published.rules import (
    PublishedArchitecture,
    Rules,
    linear_rules,
    require_round_trip,
    with_prefix,
)
from mmjax.weights.published.tensor_layouts import LINEAR

TOWER, DECODER, PROJECTOR = "vision_tower.", "language_model.", "multi_modal_projector"
(CLIP_TOWER,) = clip.PUBLISHED
DECODERS = (*llama.PUBLISHED, *qwen2.PUBLISHED, *mistral.PUBLISHED, *qwen3.PUBLISHED)

# What the files of LLaVA-1.5 leave out: the defaults of transformers for this architecture and for Llama.
VISION_DEFAULTS = {
    "model_type": "clip_vision_model",
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "image_size": 336,
    "patch_size": 14,
}
TEXT_DEFAULTS = {
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "intermediate_size": 11008,
}
REQUIRED_VALUES = {"vision_feature_select_strategy": "default", "multimodal_projector_bias": True}
"""Keys of config.json with the only value that can be computed, which is their default too."""

ALIASES = (
    ("model.language_model.", f"{DECODER}model."),
    ("lm_head.", f"{DECODER}lm_head."),
    ("model.multi_modal_projector.", f"{PROJECTOR}."),
    ("model.image_newline", "image_newline"),
    ("model.vision_tower.vision_model.", f"{TOWER}vision_model."),
    *((f"{model}{TOWER}{alias}", f"{TOWER}{prefix}") for model in ("", "model.") for alias, prefix in clip.ALIASES),
)
"""Prefixes that version 5 of transformers uses in memory and in files."""


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """Reads transformers' LlavaConfig or LlavaNextConfig.

    Raises:
        ValueError: A key has a value that cannot be computed.
    """
    for key, required in REQUIRED_VALUES.items():
        if values.get(key, required) != required:
            raise ValueError(f"{key} is {values[key]!r}; only {required!r} can be computed")
    pixels = {key: values[key] for key in ("image_mean", "image_std") if key in values}
    vision = {**VISION_DEFAULTS, **pixels, **values.get("vision_config", {})}
    text = {**TEXT_DEFAULTS, **values.get("text_config", {})}
    known = {CLIP_TOWER.model_types[0]: CLIP_TOWER, **{decoder.model_types[0]: decoder for decoder in DECODERS}}
    for key, config in (("vision_config", vision), ("text_config", text)):
        if config["model_type"] not in known:
            raise ValueError(f"{key} is of type {config['model_type']!r}; choose one of {', '.join(known)}")
    projector = MLPProjectorConfig(activation=ACTIVATIONS[values.get("projector_hidden_act", "gelu")])
    tower = clip.read_config(vision)
    unused = unused_block_count("vision_feature_layer", values.get("vision_feature_layer", -2), tower.depth)
    encoder = dataclasses.replace(tower, depth=tower.depth - unused, unused_blocks=unused, projector=projector)
    return ModelConfig((encoder,), known[text["model_type"]].read_config(text), ())


def write_config(model: ModelConfig) -> dict[str, Any]:
    """Writes transformers' LlavaConfig, without `image_token_index`, whose default there is 32000."""
    encoder = require_vision_language_model(model)
    decoder = first_matching_decoder(model.backbone, DECODERS)
    values = {
        **REQUIRED_VALUES,
        "projector_hidden_act": published_activation(getattr(encoder.projector, "activation", "gelu")),
        "vision_feature_layer": -1 - encoder.unused_blocks,
        "image_seq_length": encoder.grid**2,
        "tie_word_embeddings": model.backbone.tie_embeddings,
        "vision_config": {"model_type": CLIP_TOWER.model_types[0], **clip.write_config(encoder)},
        "text_config": {"model_type": decoder.model_types[0], **decoder.write_config(model.backbone)},
    }
    require_round_trip(encoder, require_vision_language_model(read_config(values)), PIXEL_FIELDS)
    return values


def rules(model: ModelConfig) -> Rules:
    """Rules of the tower, the projector and the decoder."""
    encoder, backbone = require_vision_language_model(model), model.backbone
    projector = (
        *linear_rules(f"{PROJECTOR}.linear_1", "projector/mlp/up", LINEAR, bias=True),
        *linear_rules(f"{PROJECTOR}.linear_2", "projector/mlp/down", LINEAR, bias=True),
    )
    decoder_rules = first_matching_decoder(backbone, DECODERS).rules(backbone)[backbone.name]
    return {
        encoder.name: (*with_prefix(clip.rules(encoder)[encoder.name], TOWER), *projector),
        backbone.name: with_prefix(decoder_rules, DECODER),
    }


def ignored(model: ModelConfig) -> tuple[str, ...]:
    """Ignored tensors of the tower and the decoder."""
    encoder, backbone = require_vision_language_model(model), model.backbone
    decoder_patterns = first_matching_decoder(backbone, DECODERS).ignored(backbone)
    return (
        *(TOWER + pattern for pattern in clip.ignored(encoder)),
        *(DECODER + pattern for pattern in decoder_patterns),
    )


def ignored_of_next(model: ModelConfig) -> tuple[str, ...]:
    """Ignored tensors of LLaVA-NeXT: those of LLaVA, and the newline vector of its maps."""
    return (*ignored(model), "image_newline")


def duplicates(model: ModelConfig) -> dict[str, str]:
    """Duplicates of the decoder."""
    decoder_duplicates = first_matching_decoder(model.backbone, DECODERS).duplicates(model.backbone)
    return {DECODER + copy: DECODER + name for copy, name in decoder_duplicates.items()}


def _published(name: str, model_type: str, ignored: Callable[[ModelConfig], tuple[str, ...]]) -> PublishedArchitecture:
    return PublishedArchitecture(
        name=name,
        model_types=(model_type,),
        config_type=ModelConfig,
        read_config=read_config,
        write_config=write_config,
        rules=rules,
        ignored=ignored,
        duplicates=duplicates,
        aliases=ALIASES,
    )


PUBLISHED = (
    _published("LlavaForConditionalGeneration", "llava", ignored),
    _published("LlavaNextForConditionalGeneration", "llava_next", ignored_of_next),
)
