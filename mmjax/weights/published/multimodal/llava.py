"""LLaVA-1.5 (arXiv 2310.03744) and LLaVA-NeXT, as transformers names them: CLIP's tower, a projector and a decoder.

Of LLaVA-NeXT we have the weights and not the way of pictures: it lays an image's tiles out as one map, without what
padding made, and ends every row of the map with the learned `image_newline`. Ours are tiles one after the other
(`data.media.tiling`), and that vector is kept beside the model.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from configs.architectures import ModelConfig, VisionConfig
from configs.projectors import MLPProjectorConfig
from mmjax.weights.published.decoders import llama, qwen2
from mmjax.weights.published.decoders.llama_like import first_matching_decoder
from mmjax.weights.published.encoders import clip
from mmjax.weights.published.encoders.vision_transformer import ACTIVATIONS, unused_block_count
from mmjax.weights.published.round_trip import require_round_trip
from mmjax.weights.published.rules import PublishedArchitecture, Rules, linear_rules, with_prefix
from mmjax.weights.published.tensor_layouts import LINEAR

TOWER, DECODER, PROJECTOR = "vision_tower.", "language_model.", "multi_modal_projector"
(TOWERS,) = clip.PUBLISHED
DECODERS = (*llama.PUBLISHED, *qwen2.PUBLISHED)

# What LLaVA-1.5's own files leave out: transformers' defaults of this architecture and of Llama.
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
FIXED = {"vision_feature_select_strategy": "default", "multimodal_projector_bias": True}
"""What ours computes and no other: keys of config.json with their only value, which is their default too."""

ALIASES = (
    ("model.language_model.", f"{DECODER}model."),
    ("lm_head.", f"{DECODER}lm_head."),
    ("model.multi_modal_projector.", f"{PROJECTOR}."),
    ("model.image_newline", "image_newline"),
    ("model.vision_tower.vision_model.", f"{TOWER}vision_model."),
    *((f"{before}{TOWER}{of}", f"{TOWER}{ours}") for before in ("", "model.") for of, ours in clip.ALIASES),
)
"""What transformers 5 calls them within a program, and saves."""


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """Of transformers' LlavaConfig or LlavaNextConfig."""
    for key, only in FIXED.items():
        if values.get(key, only) != only:
            raise ValueError(f"{key} is {values[key]!r}; only {only!r} can be computed")
    pixels = {key: values[key] for key in ("image_mean", "image_std") if key in values}
    vision = {**VISION_DEFAULTS, **pixels, **values.get("vision_config", {})}
    text = {**TEXT_DEFAULTS, **values.get("text_config", {})}
    known = {TOWERS.model_types[0]: TOWERS, **{each.model_types[0]: each for each in DECODERS}}
    for key, of in (("vision_config", vision), ("text_config", text)):
        if of["model_type"] not in known:
            raise ValueError(f"{key} is of type {of['model_type']!r}; choose one of {', '.join(known)}")
    projector = MLPProjectorConfig(activation=ACTIVATIONS[values.get("projector_hidden_act", "gelu")])
    tower = clip.read_config(vision)
    unused = unused_block_count("vision_feature_layer", values.get("vision_feature_layer", -2), tower.depth)
    seen = dataclasses.replace(tower, depth=tower.depth - unused, unused_blocks=unused, projector=projector)
    return ModelConfig((seen,), known[text["model_type"]].read_config(text), ())


def write_config(model: ModelConfig) -> dict[str, Any]:
    """For transformers' LlavaConfig; of `image_token_index` nothing is said, so that it is their 32000."""
    if len(model.encoders) != 1 or model.generators or not isinstance(model.encoders[0], VisionConfig):
        raise ValueError("it has not one vision encoder and a backbone, and no more")
    (seen,) = model.encoders
    called = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    activation = getattr(seen.projector, "activation", "gelu")
    decoder = first_matching_decoder(model.backbone, DECODERS)
    values = {
        **FIXED,
        "projector_hidden_act": called[activation],
        "vision_feature_layer": -1 - seen.unused_blocks,
        "image_seq_length": seen.grid**2,
        "tie_word_embeddings": model.backbone.tie_embeddings,
        "vision_config": {"model_type": TOWERS.model_types[0], **clip.write_config(seen)},
        "text_config": {"model_type": decoder.model_types[0], **decoder.write_config(model.backbone)},
    }
    (again,) = read_config(values).encoders
    require_round_trip(seen, again, ("pixel_mean", "pixel_std"))
    return values


def rules(model: ModelConfig) -> Rules:
    """The tower's, the projector's and the decoder's."""
    (seen,), backbone = model.encoders, model.backbone
    projector = (
        *linear_rules(f"{PROJECTOR}.linear_1", "projector/mlp/up", LINEAR, bias=True),
        *linear_rules(f"{PROJECTOR}.linear_2", "projector/mlp/down", LINEAR, bias=True),
    )
    of_decoder = first_matching_decoder(backbone, DECODERS).rules(backbone)[backbone.name]
    return {
        seen.name: (*with_prefix(clip.rules(seen)[seen.name], TOWER), *projector),
        backbone.name: with_prefix(of_decoder, DECODER),
    }


def ignored(model: ModelConfig) -> tuple[str, ...]:
    """What the tower and the decoder leave out."""
    (seen,), backbone = model.encoders, model.backbone
    of_decoder = first_matching_decoder(backbone, DECODERS).ignored(backbone)
    return (*(TOWER + name for name in clip.ignored(seen)), *(DECODER + name for name in of_decoder))


def ignored_of_next(model: ModelConfig) -> tuple[str, ...]:
    """The same, and what ends the rows of a map."""
    return (*ignored(model), "image_newline")


def repeated(model: ModelConfig) -> dict[str, str]:
    """The decoder's."""
    of_decoder = first_matching_decoder(model.backbone, DECODERS).duplicates(model.backbone)
    return {DECODER + again: DECODER + name for again, name in of_decoder.items()}


def _published(name: str, model_type: str, left: Callable[[ModelConfig], tuple[str, ...]]) -> PublishedArchitecture:
    return PublishedArchitecture(
        name, (model_type,), ModelConfig, read_config, write_config, rules, left, repeated, aliases=ALIASES
    )


PUBLISHED = (
    _published("LlavaForConditionalGeneration", "llava", ignored),
    _published("LlavaNextForConditionalGeneration", "llava_next", ignored_of_next),
)
