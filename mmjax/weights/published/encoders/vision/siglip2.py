"""SigLIP 2's image tower of any resolution (NaFlex, arXiv 2502.14786), `Siglip2VisionModel` of transformers.

The checkpoints of SigLIP 2 with a fixed resolution are SigLIP's, by their `model_type` too.
"""

from configs.architectures import VisionConfig
from mmjax.weights.published.encoders.shared.vision_keys import (
    ACTIVATION,
    EPSILON,
    FFN,
    HALF_PIXELS,
    PATCH,
    SIZES,
    square_table,
)
from mmjax.weights.published.encoders.shared.vision_transformer import encoder_architecture, of_whole_models
from mmjax.weights.published.encoders.vision import siglip
from mmjax.weights.published.key_table import Fields
from mmjax.weights.published.rules import Rule, Rules
from mmjax.weights.published.tensor_layouts import LINEAR

PIXELS = "embed/pixels/kernel"
DEFAULTS = {**siglip.DEFAULTS, "num_patches": 256}
"""Values that transformers assumes where a file leaves them out."""

KEYS = (
    *SIZES,
    FFN,
    EPSILON,
    ACTIVATION,
    PATCH,
    square_table("num_patches"),
    HALF_PIXELS,
    Fields({"interpolation": "bilinear_antialiased"}),
)


def rules(config: VisionConfig) -> Rules:
    """Rules of the encoder: SigLIP's, except that the projection of patches is a matmul in the checkpoint too."""
    pixels = Rule(f"{siglip.TOWER}.embeddings.patch_embedding.weight", PIXELS, LINEAR)
    others = (rule for rule in siglip.rules(config)[config.name] if rule.parameters != PIXELS)
    return {config.name: (pixels, *others)}


PUBLISHED = (
    encoder_architecture(
        "Siglip2VisionModel",
        ("siglip2_vision_model", "siglip2"),
        KEYS,
        prepare=of_whole_models(DEFAULTS),
        rules=rules,
        ignored=siglip.ignored,
        aliases=siglip.ALIASES,
    ),
)
