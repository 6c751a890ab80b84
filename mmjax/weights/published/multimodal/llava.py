"""LLaVA-1.5 (arXiv 2310.03744) and LLaVA-NeXT, as transformers names them: CLIP's tower, a projector and a decoder.

Of LLaVA-NeXT the weights are read, but images become tokens in another way. LLaVA-NeXT lays the tiles of an image out
as one map, crops the padding, and ends every row of the map with the learned vector `image_newline`. Here tiles follow
one another (`data.media.tiling`), and an export copies that vector.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from configs.architectures import ModelConfig, VisionConfig
from configs.projectors import MLPProjectorConfig
from mmjax.weights.published.decoders import llama, mistral, qwen2, qwen3
from mmjax.weights.published.encoders import clip
from mmjax.weights.published.encoders.vision_transformer import (
    ACTIVATIONS,
    published_activation,
    unused_block_count,
)
from mmjax.weights.published.multimodal.multimodal_format import MultimodalFormat, PublishedEncoder, by_model_type
from mmjax.weights.published.rules import Rule, linear_rules
from mmjax.weights.published.tensor_layouts import LINEAR

PROJECTOR = "multi_modal_projector"

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


def projector_rules(encoder: VisionConfig) -> tuple[Rule, ...]:
    """Rules of the projector's two matmuls."""
    del encoder
    return (
        *linear_rules(f"{PROJECTOR}.linear_1", "projector/mlp/up", LINEAR, bias=True),
        *linear_rules(f"{PROJECTOR}.linear_2", "projector/mlp/down", LINEAR, bias=True),
    )


TOWER = PublishedEncoder(
    prefix="vision_tower.",
    architectures={clip.PUBLISHED[0].model_types[0]: clip.PUBLISHED[0]},
    projector=projector_rules,
    defaults=VISION_DEFAULTS,
)
FORMAT = MultimodalFormat(
    encoders=(TOWER,),
    decoders=by_model_type(*llama.PUBLISHED, *qwen2.PUBLISHED, *mistral.PUBLISHED, *qwen3.PUBLISHED),
    decoder_defaults=TEXT_DEFAULTS,
    tying="either",
    own_aliases=((f"model.{PROJECTOR}.", f"{PROJECTOR}."),),
)
NEXT_FORMAT = dataclasses.replace(
    FORMAT,
    tying="model",
    ignored_tensors=("image_newline",),
    own_aliases=(*FORMAT.own_aliases, ("model.image_newline", "image_newline")),
)


@dataclasses.dataclass(frozen=True)
class Llava:
    """One generation of models.

    Attributes:
        format: Its modules and their names.
    """

    format: MultimodalFormat

    def read_config(self, values: Mapping[str, Any]) -> ModelConfig:
        """Reads transformers' LlavaConfig or LlavaNextConfig.

        Raises:
            ValueError: A key has a value that cannot be computed.
        """
        for key, required in REQUIRED_VALUES.items():
            if values.get(key, required) != required:
                raise ValueError(f"{key} is {values[key]!r}; only {required!r} can be computed")
        projector = MLPProjectorConfig(activation=ACTIVATIONS[values.get("projector_hidden_act", "gelu")])
        tower = TOWER.read_config(values)
        unused = unused_block_count("vision_feature_layer", values.get("vision_feature_layer", -2), tower.depth)
        encoder = dataclasses.replace(tower, depth=tower.depth - unused, unused_blocks=unused, projector=projector)
        return ModelConfig((encoder,), self.format.read_decoder_config(values), ())

    def write_config(self, model: ModelConfig) -> dict[str, Any]:
        """Writes either, without `image_token_index`, whose default there is 32000."""
        (encoder,) = model.encoders
        assert isinstance(encoder, VisionConfig), "the format has checked it"
        return {
            **REQUIRED_VALUES,
            "projector_hidden_act": published_activation(getattr(encoder.projector, "activation", "gelu")),
            "vision_feature_layer": -1 - encoder.unused_blocks,
            "image_seq_length": encoder.grid**2,
            "vision_config": TOWER.write_config(encoder),
            "text_config": self.format.write_decoder_config(model.backbone),
        }


PUBLISHED = tuple(
    each.format.published(f"{name}ForConditionalGeneration", (model_type,), each.read_config, each.write_config)
    for name, model_type, each in (
        ("Llava", "llava", Llava(FORMAT)),
        ("LlavaNext", "llava_next", Llava(NEXT_FORMAT)),
    )
)
