"""InternVL (arXiv 2404.16821): its authors' `InternVLChatModel`, and transformers' `InternVLForConditionalGeneration`.

Squares of 2 x 2 patches of InternViT pass through a norm and two matmuls into the tokens of a decoder. The pixel
shuffle joins the patches of a square row by row, which is their order here too, so that no weight has to be permuted.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from configs.architectures import BackboneConfig, ModelConfig, VisionConfig
from configs.projectors import MLPProjectorConfig
from mmjax.weights.published.decoders import internlm2, llama, qwen2, qwen3, qwen3_moe
from mmjax.weights.published.decoders.llama_like import first_matching_decoder
from mmjax.weights.published.encoders import internvit
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
    norm_rules,
    require_round_trip,
    with_prefix,
)
from mmjax.weights.published.tensor_layouts import LINEAR

DECODER = "language_model."


@dataclasses.dataclass(frozen=True)
class InternVLFormat:
    """The modules of a checkpoint and their names in it.

    Attributes:
        tower: Architecture of the vision encoder.
        tower_prefix: Prefix of the encoder's tensors.
        projector: Names of the projector's norm and its two matmuls.
        decoders: Architectures that the decoder may have.
    """

    tower: PublishedArchitecture
    tower_prefix: str
    projector: tuple[str, str, str]
    decoders: tuple[PublishedArchitecture, ...]

    def rules(self, model: ModelConfig) -> Rules:
        """Rules of the encoder, the projector and the decoder."""
        encoder, backbone = require_vision_language_model(model), model.backbone
        norm, up, down = self.projector
        projector = (
            *norm_rules(norm, "projector/norm", bias=True),
            *linear_rules(up, "projector/mlp/up", LINEAR, bias=True),
            *linear_rules(down, "projector/mlp/down", LINEAR, bias=True),
        )
        decoder_rules = first_matching_decoder(backbone, self.decoders).rules(backbone)[backbone.name]
        return {
            encoder.name: (*with_prefix(self.tower.rules(encoder)[encoder.name], self.tower_prefix), *projector),
            backbone.name: with_prefix(decoder_rules, DECODER),
        }

    def ignored(self, model: ModelConfig) -> tuple[str, ...]:
        """Ignored tensors of the encoder and the decoder."""
        encoder, backbone = require_vision_language_model(model), model.backbone
        decoder_patterns = first_matching_decoder(backbone, self.decoders).ignored(backbone)
        return (
            *(self.tower_prefix + pattern for pattern in self.tower.ignored(encoder)),
            *(DECODER + pattern for pattern in decoder_patterns),
        )

    def duplicates(self, model: ModelConfig) -> dict[str, str]:
        """Duplicates of the decoder."""
        decoder_duplicates = first_matching_decoder(model.backbone, self.decoders).duplicates(model.backbone)
        return {DECODER + copy: DECODER + name for copy, name in decoder_duplicates.items()}

    def read_decoder_config(self, key: str, values: Mapping[str, Any]) -> BackboneConfig:
        """The configuration of the decoder.

        Args:
            key: Key of config.json that describes the decoder, for messages.
            values: Its value.

        Raises:
            ValueError: The decoder is none of those known.
        """
        known = {model_type: decoder for decoder in self.decoders for model_type in decoder.model_types}
        if values["model_type"] not in known:
            raise ValueError(f"{key} is of type {values['model_type']!r}; choose one of {', '.join(known)}")
        return known[values["model_type"]].read_config(values)

    def write_decoder_config(self, backbone: BackboneConfig) -> dict[str, Any]:
        """What config.json says about the decoder."""
        decoder = first_matching_decoder(backbone, self.decoders)
        return {
            "architectures": [decoder.name],
            "model_type": decoder.model_types[0],
            **decoder.write_config(backbone),
        }


def vision_language_model(
    tower: VisionConfig, backbone: BackboneConfig, downsample_ratio: float, unused_blocks: int, activation: str
) -> ModelConfig:
    """The configuration of the whole model.

    Args:
        tower: The encoder with all its blocks.
        backbone: The decoder.
        downsample_ratio: Ratio of the pixel shuffle: one divided by the patches along a side of a square.
        unused_blocks: Blocks after the one whose outputs are used.
        activation: Activation of the projector, by its name in transformers.

    Raises:
        ValueError: The ratio or the activation cannot be computed.
    """
    merge = round(1 / downsample_ratio)
    if merge * downsample_ratio != 1:
        raise ValueError(f"downsample_ratio is {downsample_ratio}; only one divided by a whole number can be computed")
    if activation not in ACTIVATIONS:
        raise ValueError(f"projector_hidden_act is {activation!r}; choose one of {', '.join(ACTIVATIONS)}")
    encoder = dataclasses.replace(
        tower,
        depth=tower.depth - unused_blocks,
        unused_blocks=unused_blocks,
        final_norm=tower.final_norm and not unused_blocks,
        merge=merge,
        projector=MLPProjectorConfig(norm=True, activation=ACTIVATIONS[activation]),
    )
    return ModelConfig((encoder,), backbone, ())


def _pixel_normalisation(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: values[key] for key in ("image_mean", "image_std") if key in values}


TRANSFORMERS_FORMAT = InternVLFormat(
    internvit.TRANSFORMERS,
    "vision_tower.",
    ("multi_modal_projector.layer_norm", "multi_modal_projector.linear_1", "multi_modal_projector.linear_2"),
    (*qwen2.PUBLISHED, *qwen3.PUBLISHED, *qwen3_moe.PUBLISHED, *llama.PUBLISHED),
)
ALIASES = (
    ("model.language_model.", f"{DECODER}model."),
    ("lm_head.", f"{DECODER}lm_head."),
    ("model.multi_modal_projector.", "multi_modal_projector."),
    ("model.vision_tower.", "vision_tower."),
)
"""Prefixes that version 5 of transformers uses in memory."""


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """Reads transformers' InternVLConfig.

    Raises:
        ValueError: A key has a value that cannot be computed.
    """
    strategy = values.get("vision_feature_select_strategy", "default")
    if strategy != "default":
        raise ValueError(f"vision_feature_select_strategy is {strategy!r}; only 'default' can be computed")
    tied = {key: values[key] for key in ("tie_word_embeddings",) if key in values}
    text = {"model_type": "qwen2", **tied, **values["text_config"]}
    backbone = TRANSFORMERS_FORMAT.read_decoder_config("text_config", text)
    tower = internvit.read_config({**_pixel_normalisation(values), **values["vision_config"]})
    unused_blocks = unused_block_count("vision_feature_layer", values.get("vision_feature_layer", -1), tower.depth)
    ratio, activation = values.get("downsample_ratio", 0.5), values.get("projector_hidden_act", "gelu")
    return vision_language_model(tower, backbone, ratio, unused_blocks, activation)


def write_config(model: ModelConfig) -> dict[str, Any]:
    """Writes transformers' InternVLConfig, without `image_token_id`, whose default there is 151667."""
    encoder = require_vision_language_model(model)
    values = {
        "downsample_ratio": 1 / encoder.merge,
        "projector_hidden_act": published_activation(getattr(encoder.projector, "activation", "gelu")),
        "vision_feature_layer": -1 - encoder.unused_blocks,
        "vision_feature_select_strategy": "default",
        "image_seq_length": (encoder.grid // encoder.merge) ** 2,
        "tie_word_embeddings": model.backbone.tie_embeddings,
        "vision_config": {"model_type": "internvl_vision", **internvit.write_config(encoder)},
        "text_config": TRANSFORMERS_FORMAT.write_decoder_config(model.backbone),
    }
    require_round_trip(encoder, require_vision_language_model(read_config(values)), PIXEL_FIELDS)
    return values


@dataclasses.dataclass(frozen=True)
class InternVLChat:
    """The authors' own format with one of the decoders.

    The names of tensors depend on the decoder, which a ModelConfig does not name; so each decoder is an architecture of
    its own.

    Attributes:
        decoder: Architecture of the decoder.
    """

    decoder: PublishedArchitecture

    @property
    def format(self) -> InternVLFormat:
        """The modules of a checkpoint and their names in it."""
        return InternVLFormat(internvit.ORIGINAL, "vision_model.", ("mlp1.0", "mlp1.1", "mlp1.3"), (self.decoder,))

    def read_config(self, values: Mapping[str, Any]) -> ModelConfig:
        """Reads InternVLChatConfig.

        Raises:
            ValueError: A key has a value that cannot be computed.
        """
        if values.get("ps_version", "v1") != "v2":
            raise ValueError(
                "ps_version is 'v1', which transposes rows and columns of a map; only 'v2' can be computed"
            )
        tower = internvit.read_original({**_pixel_normalisation(values), **values["vision_config"]})
        unused_blocks = unused_block_count("select_layer", values.get("select_layer", -1), tower.depth)
        backbone = self.format.read_decoder_config("llm_config", values["llm_config"])
        return vision_language_model(tower, backbone, values.get("downsample_ratio", 0.5), unused_blocks, "gelu")

    def write_config(self, model: ModelConfig) -> dict[str, Any]:
        """Writes InternVLChatConfig."""
        encoder = require_vision_language_model(model)
        values = {
            "architectures": ["InternVLChatModel"],
            "model_type": "internvl_chat",
            "downsample_ratio": 1 / encoder.merge,
            "ps_version": "v2",
            "select_layer": -1 - encoder.unused_blocks,
            "force_image_size": encoder.grid * encoder.patch,
            "vision_config": {"model_type": "intern_vit_6b", **internvit.write_original(encoder)},
            "llm_config": self.format.write_decoder_config(model.backbone),
        }
        require_round_trip(encoder, require_vision_language_model(self.read_config(values)), PIXEL_FIELDS)
        return values

    @property
    def architecture(self) -> PublishedArchitecture:
        """The architecture; `registry.model_type_of` makes its model type from config.json."""
        return PublishedArchitecture(
            name=f"InternVLChatModel of {self.decoder.name}",
            model_types=(f"internvl_chat/{self.decoder.model_types[0]}",),
            config_type=ModelConfig,
            read_config=self.read_config,
            write_config=self.write_config,
            rules=self.format.rules,
            ignored=self.format.ignored,
            duplicates=self.format.duplicates,
        )


CHAT_DECODERS = (
    *internlm2.PUBLISHED,
    *qwen2.PUBLISHED,
    *qwen3.PUBLISHED,
    *qwen3_moe.PUBLISHED,
    *llama.PUBLISHED,
)
"""Decoders of the authors' own format: InternVL 1.5 to 3.5."""

PUBLISHED = (
    PublishedArchitecture(
        name="InternVLForConditionalGeneration",
        model_types=("internvl",),
        config_type=ModelConfig,
        read_config=read_config,
        write_config=write_config,
        rules=TRANSFORMERS_FORMAT.rules,
        ignored=TRANSFORMERS_FORMAT.ignored,
        duplicates=TRANSFORMERS_FORMAT.duplicates,
        aliases=ALIASES,
    ),
    *(InternVLChat(decoder).architecture for decoder in CHAT_DECODERS),
)
