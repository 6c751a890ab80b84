"""SigLIP's image tower (arXiv 2303.15343), `SiglipVisionModel` of transformers, which whole models contain."""

from configs.architectures import VisionConfig
from mmjax.weights.published.encoders.shared.vision_keys import ENCODER_KEYS, HALF_PIXELS
from mmjax.weights.published.encoders.shared.vision_rules import (
    CLIP_NAMES,
    block_rules,
    final_norm_rules,
    patch_embedding_rules,
    position_table_rule,
    unused_patterns,
)
from mmjax.weights.published.encoders.shared.vision_transformer import (
    VIT_BASE_DEFAULTS,
    encoder_architecture,
    of_whole_models,
)
from mmjax.weights.published.key_table import Fields
from mmjax.weights.published.rules import PublishedArchitecture, Rules

TOWER = "vision_model"
BLOCK = f"{TOWER}.encoder.layers.{{layer}}"
FINAL_NORM = f"{TOWER}.post_layernorm"
DEFAULTS = {**VIT_BASE_DEFAULTS, "layer_norm_eps": 1e-6, "hidden_act": "gelu_pytorch_tanh"}
"""Values that transformers assumes where a file leaves them out, as many of SigLIP's do."""

ALIASES = tuple((f"{part}.", f"{TOWER}.{part}.") for part in ("embeddings", "encoder", "post_layernorm", "head"))
"""Version 5 of transformers saves the tower of a model alone without its prefix."""


def rules(config: VisionConfig) -> Rules:
    """Rules of the encoder."""
    encoder = (
        *patch_embedding_rules(f"{TOWER}.embeddings.patch_embedding", config),
        position_table_rule(f"{TOWER}.embeddings.position_embedding.weight", config),
        *block_rules(BLOCK, CLIP_NAMES, config),
        *final_norm_rules(FINAL_NORM, config),
    )
    return {config.name: encoder}


def ignored(config: VisionConfig) -> tuple[str, ...]:
    """The pooling head, unused blocks, and tensors of whole models outside the tower."""
    tower = (f"{TOWER}.head.*", f"{TOWER}.embeddings.position_ids", *unused_patterns(BLOCK, config, FINAL_NORM))
    return (*tower, "text_model.*", "logit_scale", "logit_bias")


def _tower(*keys: Fields) -> PublishedArchitecture:
    return encoder_architecture(
        "SiglipVisionModel",
        ("siglip_vision_model", "siglip"),
        (*ENCODER_KEYS, HALF_PIXELS, *keys),
        prepare=of_whole_models(DEFAULTS),
        rules=rules,
        ignored=ignored,
        aliases=ALIASES,
    )


PUBLISHED = (_tower(),)
WITHOUT_NORM = _tower(Fields({"final_norm": False}))
"""The tower in whole models that take the outputs of its last block, without the norm behind it."""
