"""CLIP's image tower (arXiv 2103.00020), `CLIPVisionModel` of transformers, which whole CLIP models contain.

Features are the outputs of the last block, as `last_hidden_state` of transformers; the norm after it is applied to the
class token alone.
"""

from configs.architectures import VisionConfig
from mmjax.weights.published.encoders.shared.vision_keys import CLIP_PIXELS, ENCODER_KEYS
from mmjax.weights.published.encoders.shared.vision_rules import (
    CLIP_NAMES,
    block_rules,
    class_token_rule,
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
from mmjax.weights.published.rules import Rules, norm_rules

TOWER = "vision_model"
BLOCK = f"{TOWER}.encoder.layers.{{layer}}"
DEFAULTS = {**VIT_BASE_DEFAULTS, "patch_size": 32, "layer_norm_eps": 1e-5, "hidden_act": "quick_gelu"}
"""Values that transformers assumes where a file leaves them out, as many of CLIP's do."""

ALIASES = tuple(
    (f"{part}.", f"{TOWER}.{part}.") for part in ("embeddings", "encoder", "pre_layrnorm", "post_layernorm")
)
"""Version 5 of transformers saves the tower of a model alone without its prefix."""


def rules(config: VisionConfig) -> Rules:
    """Rules of the encoder."""
    embeddings = f"{TOWER}.embeddings"
    encoder = (
        *patch_embedding_rules(f"{embeddings}.patch_embedding", config),
        class_token_rule(f"{embeddings}.class_embedding", config),
        position_table_rule(f"{embeddings}.position_embedding.weight", config),
        *norm_rules(f"{TOWER}.pre_layrnorm", "embed/norm", bias=True),
        *block_rules(BLOCK, CLIP_NAMES, config),
    )
    return {config.name: encoder}


def ignored(config: VisionConfig) -> tuple[str, ...]:
    """The norm after the last block, unused blocks, and tensors of whole CLIP models outside the tower."""
    tower = (f"{TOWER}.post_layernorm.*", f"{TOWER}.embeddings.position_ids", *unused_patterns(BLOCK, config))
    return (*tower, "text_model.*", "logit_scale", "*_projection.weight")


FIELDS = Fields({"patch_bias": False, "class_token": True, "input_norm": True, "final_norm": False})

PUBLISHED = (
    encoder_architecture(
        "CLIPVisionModel",
        ("clip_vision_model", "clip"),
        (*ENCODER_KEYS, CLIP_PIXELS, FIELDS),
        prepare=of_whole_models(DEFAULTS),
        rules=rules,
        ignored=ignored,
        aliases=ALIASES,
    ),
)
