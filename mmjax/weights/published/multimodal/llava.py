"""LLaVA-1.5 (arXiv 2310.03744), LLaVA-NeXT, LLaVA-OneVision (2408.03326), and transformers' Pixtral (2410.07073).

A vision tower, a projector of two matmuls and a decoder. LLaVA-NeXT and LLaVA-OneVision lay the tiles of an image out
as one map, whose rows the learned vector `image_newline` ends (`data.text.image_layout.ImageLayout.joined`).
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from configs.architectures import ModelConfig, VisionConfig
from configs.projectors import MLPProjectorConfig
from mmjax.weights.published.activations import published_activation, read_activation
from mmjax.weights.published.config_values import require_values
from mmjax.weights.published.decoders.dense import llama, mistral, qwen2, qwen3
from mmjax.weights.published.encoders.shared.vision_keys import unused_block_count
from mmjax.weights.published.encoders.vision import clip, pixtral, siglip
from mmjax.weights.published.multimodal.multimodal_format import MultimodalFormat, PublishedEncoder, by_model_type
from mmjax.weights.published.rules import PublishedArchitecture, Rule, linear_rules
from mmjax.weights.published.tensor_layouts import LINEAR

PROJECTOR, NEWLINE = "multi_modal_projector", "image_newline"

# Values that the files of LLaVA-1.5 leave out: the defaults of transformers for this architecture and for Llama.
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
MISTRAL_DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
}
"""Values of the decoder that Pixtral's file leaves out: transformers' defaults."""

NEXT_GRIDS = ((1, 2), (2, 1), (2, 2), (3, 1), (1, 3))
ONE_VISION_GRIDS = tuple((rows, columns) for rows in range(1, 7) for columns in range(1, 7))
"""Grids of tiles, as rows and columns, from which the grid of an image is chosen."""


def projector_rules(encoder: VisionConfig) -> tuple[Rule, ...]:
    """Rules of the projector's two matmuls."""
    del encoder
    return (
        *linear_rules(f"{PROJECTOR}.linear_1", "projector/mlp/up", LINEAR, bias=True),
        *linear_rules(f"{PROJECTOR}.linear_2", "projector/mlp/down", LINEAR, bias=True),
    )


def tower_of(
    architectures: Mapping[str, PublishedArchitecture], defaults: Mapping[str, Any] | None = None
) -> PublishedEncoder:
    """Makes the encoder of a tower that has one of several architectures."""
    return PublishedEncoder(
        prefix="vision_tower.", architectures=architectures, projector=projector_rules, defaults=defaults or {}
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Llava:
    """One generation of models.

    Attributes:
        name: Name of transformers' class.
        model_type: `model_type` of config.json.
        format: Its modules and their names.
        feature_layer: Number of the block whose outputs are used, from the end, where config.json leaves it out.
        strategy: `vision_feature_select_strategy` where config.json leaves it out.
        grids: Grids of tiles that config.json lists, in pixels; empty where it lists none.
    """

    name: str
    model_type: str
    format: MultimodalFormat
    feature_layer: int = -2
    strategy: str = "default"
    grids: tuple[tuple[int, int], ...] = ()

    @property
    def tower(self) -> PublishedEncoder:
        """The vision tower."""
        (tower,) = self.format.encoders
        return tower

    def read_config(self, values: Mapping[str, Any]) -> ModelConfig:
        """Reads config.json.

        Raises:
            ValueError: A key has a value that cannot be computed.
        """
        tower = self.tower.read_config(values)
        require_values(
            {"vision_feature_select_strategy": self.strategy, **values},
            {"vision_feature_select_strategy": select_strategy(tower), "multimodal_projector_bias": True},
        )
        activation = read_activation("projector_hidden_act", values.get("projector_hidden_act", "gelu"))
        projector = MLPProjectorConfig(activation=activation)
        layer = values.get("vision_feature_layer", self.feature_layer)
        unused = unused_block_count("vision_feature_layer", layer, tower.depth)
        encoder = dataclasses.replace(tower, depth=tower.depth - unused, unused_blocks=unused, projector=projector)
        text = values.get("text_config", {})
        if text.get("model_type") == mistral.PUBLISHED[0].model_types[0]:
            values = {**values, "text_config": {**MISTRAL_DEFAULTS, **text}}
        backbone = dataclasses.replace(self.format.read_decoder_config(values), newline=bool(self.format.newline))
        return ModelConfig((encoder,), backbone, ())

    def write_config(self, model: ModelConfig) -> dict[str, Any]:
        """Writes config.json, without the ids of image tokens."""
        (encoder,) = model.encoders
        assert isinstance(encoder, VisionConfig), "the format has checked it"
        side = encoder.grid * encoder.patch
        grids = {"image_grid_pinpoints": [[rows * side, columns * side] for rows, columns in self.grids]}
        return {
            "vision_feature_select_strategy": select_strategy(encoder),
            "multimodal_projector_bias": True,
            "projector_hidden_act": published_activation(getattr(encoder.projector, "activation", "gelu")),
            "vision_feature_layer": -1 - encoder.unused_blocks,
            "image_seq_length": encoder.grid**2,
            **(grids if self.grids else {}),
            "vision_config": self.tower.write_config(encoder),
            "text_config": self.format.write_decoder_config(model.backbone),
        }

    @property
    def architecture(self) -> PublishedArchitecture:
        """The published architecture."""
        return self.format.published(self.name, (self.model_type,), self.read_config, self.write_config)


def select_strategy(encoder: VisionConfig) -> str:
    """Returns which outputs of the tower become tokens: `default` leaves out the first one, `full` takes all."""
    return "default" if encoder.class_token else "full"


OWN_ALIASES = ((f"model.{PROJECTOR}.", f"{PROJECTOR}."),)
NEWLINE_ALIASES = (*OWN_ALIASES, (f"model.{NEWLINE}", NEWLINE))
CLIP_TOWER = tower_of({clip.PUBLISHED[0].model_types[0]: clip.PUBLISHED[0]}, VISION_DEFAULTS)
SIGLIP_TOWER = tower_of({siglip.PUBLISHED[0].model_types[0]: siglip.WITHOUT_NORM})
ANY_TOWER = tower_of({**CLIP_TOWER.architectures, **by_model_type(*pixtral.PUBLISHED)}, VISION_DEFAULTS)
FORMAT = MultimodalFormat(
    encoders=(ANY_TOWER,),
    decoders=by_model_type(*llama.PUBLISHED, *qwen2.PUBLISHED, *mistral.PUBLISHED, *qwen3.PUBLISHED),
    decoder_defaults=TEXT_DEFAULTS,
    tying="either",
    own_aliases=OWN_ALIASES,
)
PUBLISHED = (
    Llava(name="LlavaForConditionalGeneration", model_type="llava", format=FORMAT).architecture,
    Llava(
        name="LlavaNextForConditionalGeneration",
        model_type="llava_next",
        format=dataclasses.replace(
            FORMAT, encoders=(CLIP_TOWER,), tying="model", newline=NEWLINE, own_aliases=NEWLINE_ALIASES
        ),
        grids=NEXT_GRIDS,
    ).architecture,
    Llava(
        name="LlavaOnevisionForConditionalGeneration",
        model_type="llava_onevision",
        format=MultimodalFormat(
            encoders=(SIGLIP_TOWER,),
            decoders=by_model_type(*qwen2.PUBLISHED),
            tying="either",
            newline=NEWLINE,
            own_aliases=NEWLINE_ALIASES,
        ),
        feature_layer=-1,
        strategy="full",
        grids=ONE_VISION_GRIDS,
    ).architecture,
)
