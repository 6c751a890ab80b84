"""InternVL whole (arXiv 2404.16821), as its authors' `InternVLChatModel` names it and as transformers does.

InternViT's patches, 2 x 2 of them side by side, through a norm and two matmuls, among the tokens of a decoder. Theirs
joins the patches of a cell by a pixel shuffle, row by row, and so do we, so that nothing has to be permuted.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from configs.architectures import BackboneConfig, ModelConfig, VisionConfig
from configs.projectors import MLPProjectorConfig
from mmjax.weights.published.decoders import internlm2, llama, qwen2
from mmjax.weights.published.decoders.llama_like import first_matching_decoder
from mmjax.weights.published.encoders import internvit
from mmjax.weights.published.encoders.vision_transformer import ACTIVATIONS, unused_block_count
from mmjax.weights.published.round_trip import require_round_trip
from mmjax.weights.published.rules import PublishedArchitecture, Rules, linear_rules, norm_rules, with_prefix
from mmjax.weights.published.tensor_layouts import LINEAR

DECODER = "language_model."
MEASURED = ("pixel_mean", "pixel_std")
"""Fields that stand beside config.json."""


@dataclasses.dataclass(frozen=True)
class Parts:
    """What a checkpoint is of, and what it calls it.

    Attributes:
        tower: The vision encoder.
        tower_prefix: Before the encoder's names.
        projector: Names of its norm and its two matmuls.
        decoders: What may follow.
    """

    tower: PublishedArchitecture
    tower_prefix: str
    projector: tuple[str, str, str]
    decoders: tuple[PublishedArchitecture, ...]

    def rules(self, model: ModelConfig) -> Rules:
        """The encoder's, the projector's and the decoder's."""
        seen, backbone = one_encoder(model), model.backbone
        first, up, down = self.projector
        projector = (
            *norm_rules(first, "projector/norm", bias=True),
            *linear_rules(up, "projector/mlp/up", LINEAR, bias=True),
            *linear_rules(down, "projector/mlp/down", LINEAR, bias=True),
        )
        of_decoder = first_matching_decoder(backbone, self.decoders).rules(backbone)[backbone.name]
        return {
            seen.name: (*with_prefix(self.tower.rules(seen)[seen.name], self.tower_prefix), *projector),
            backbone.name: with_prefix(of_decoder, DECODER),
        }

    def ignored(self, model: ModelConfig) -> tuple[str, ...]:
        """What the encoder and the decoder leave out."""
        seen, backbone = one_encoder(model), model.backbone
        of_decoder = first_matching_decoder(backbone, self.decoders).ignored(backbone)
        of_tower = self.tower.ignored(seen)
        return (*(self.tower_prefix + name for name in of_tower), *(DECODER + name for name in of_decoder))

    def repeated(self, model: ModelConfig) -> dict[str, str]:
        """The decoder's."""
        of_decoder = first_matching_decoder(model.backbone, self.decoders).duplicates(model.backbone)
        return {DECODER + again: DECODER + name for again, name in of_decoder.items()}

    def read(self, key: str, values: Mapping[str, Any]) -> BackboneConfig:
        """The decoder that `key` of config.json describes.

        Raises:
            ValueError: It is none of ours.
        """
        known = {of: each for each in self.decoders for of in each.model_types}
        if values["model_type"] not in known:
            raise ValueError(f"{key} is of type {values['model_type']!r}; choose one of {', '.join(known)}")
        return known[values["model_type"]].read_config(values)

    def write(self, backbone: BackboneConfig) -> dict[str, Any]:
        """What config.json says of the decoder."""
        decoder = first_matching_decoder(backbone, self.decoders)
        return {
            "architectures": [decoder.name],
            "model_type": decoder.model_types[0],
            **decoder.write_config(backbone),
        }


def one_encoder(model: ModelConfig) -> VisionConfig:
    """The encoder of a model that sees and writes.

    Raises:
        ValueError: The model is another.
    """
    if len(model.encoders) != 1 or model.generators or not isinstance(model.encoders[0], VisionConfig):
        raise ValueError("it has not one vision encoder and a backbone, and no more")
    return model.encoders[0]


def whole(tower: VisionConfig, backbone: BackboneConfig, ratio: float, behind: int, activation: str) -> ModelConfig:
    """The model.

    Args:
        tower: The encoder with all its blocks.
        backbone: The decoder.
        ratio: Of the pixel shuffle: side of a cell as a share of a patch.
        behind: Blocks behind the one whose outputs are taken.
        activation: The projector's, by transformers' name.

    Raises:
        ValueError: A ratio or an activation that can't be computed.
    """
    merge = round(1 / ratio)
    if merge * ratio != 1:
        raise ValueError(f"downsample_ratio is {ratio}; only one divided by a whole number can be computed")
    if activation not in ACTIVATIONS:
        raise ValueError(f"projector_hidden_act is {activation!r}; choose one of {', '.join(ACTIVATIONS)}")
    seen = dataclasses.replace(
        tower,
        depth=tower.depth - behind,
        unused_blocks=behind,
        final_norm=tower.final_norm and not behind,
        merge=merge,
        projector=MLPProjectorConfig(norm=True, activation=ACTIVATIONS[activation]),
    )
    return ModelConfig((seen,), backbone, ())


def _pixels(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: values[key] for key in ("image_mean", "image_std") if key in values}


AS_TRANSFORMERS = Parts(
    internvit.TRANSFORMERS,
    "vision_tower.",
    tuple(f"multi_modal_projector.{name}" for name in ("layer_norm", "linear_1", "linear_2")),
    (*qwen2.PUBLISHED, *llama.PUBLISHED),
)
ALIASES = (
    ("model.language_model.", f"{DECODER}model."),
    ("lm_head.", f"{DECODER}lm_head."),
    ("model.multi_modal_projector.", "multi_modal_projector."),
    ("model.vision_tower.", "vision_tower."),
)
"""What transformers 5 calls them within a program."""


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """Of transformers' InternVLConfig."""
    strategy = values.get("vision_feature_select_strategy", "default")
    if strategy != "default":
        raise ValueError(f"vision_feature_select_strategy is {strategy!r}; only 'default' can be computed")
    tied = {key: values[key] for key in ("tie_word_embeddings",) if key in values}
    backbone = AS_TRANSFORMERS.read("text_config", {"model_type": "qwen2", **tied, **values["text_config"]})
    tower = internvit.read_config({**_pixels(values), **values["vision_config"]})
    behind = unused_block_count("vision_feature_layer", values.get("vision_feature_layer", -1), tower.depth)
    ratio, activation = values.get("downsample_ratio", 0.5), values.get("projector_hidden_act", "gelu")
    return whole(tower, backbone, ratio, behind, activation)


def write_config(model: ModelConfig) -> dict[str, Any]:
    """For transformers' InternVLConfig; of `image_token_id` nothing is said, so that it is their 151667."""
    seen = one_encoder(model)
    called = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    values = {
        "downsample_ratio": 1 / seen.merge,
        "projector_hidden_act": called[getattr(seen.projector, "activation", "gelu")],
        "vision_feature_layer": -1 - seen.unused_blocks,
        "vision_feature_select_strategy": "default",
        "image_seq_length": (seen.grid // seen.merge) ** 2,
        "tie_word_embeddings": model.backbone.tie_embeddings,
        "vision_config": {"model_type": "internvl_vision", **internvit.write_config(seen)},
        "text_config": AS_TRANSFORMERS.write(model.backbone),
    }
    require_round_trip(seen, one_encoder(read_config(values)), MEASURED)
    return values


@dataclasses.dataclass(frozen=True)
class Chat:
    """The authors' own, with one of the decoders: their names differ, and config.json of ours can't tell which.

    Attributes:
        decoder: The one.
    """

    decoder: PublishedArchitecture

    @property
    def parts(self) -> Parts:
        """What a checkpoint is of."""
        names = ("mlp1.0", "mlp1.1", "mlp1.3")
        return Parts(internvit.ORIGINAL, "vision_model.", names, (self.decoder,))

    def read_config(self, values: Mapping[str, Any]) -> ModelConfig:
        """Of InternVLChatConfig.

        Raises:
            ValueError: It asks for what can't be computed, named by its key.
        """
        if values.get("ps_version", "v1") != "v2":
            raise ValueError("ps_version is 'v1', which lays columns out as rows; only 'v2' can be computed")
        tower = internvit.read_original({**_pixels(values), **values["vision_config"]})
        behind = unused_block_count("select_layer", values.get("select_layer", -1), tower.depth)
        backbone = self.parts.read("llm_config", values["llm_config"])
        return whole(tower, backbone, values.get("downsample_ratio", 0.5), behind, "gelu")

    def write_config(self, model: ModelConfig) -> dict[str, Any]:
        """For InternVLChatConfig."""
        seen = one_encoder(model)
        values = {
            "architectures": ["InternVLChatModel"],
            "model_type": "internvl_chat",
            "downsample_ratio": 1 / seen.merge,
            "ps_version": "v2",
            "select_layer": -1 - seen.unused_blocks,
            "force_image_size": seen.grid * seen.patch,
            "vision_config": {"model_type": "intern_vit_6b", **internvit.write_original(seen)},
            "llm_config": self.parts.write(model.backbone),
        }
        require_round_trip(seen, one_encoder(self.read_config(values)), MEASURED)
        return values

    @property
    def published(self) -> PublishedArchitecture:
        """For the registry; see `registry.model_type_of` about its model type."""
        return PublishedArchitecture(
            f"InternVLChatModel of {self.decoder.name}",
            (f"internvl_chat/{self.decoder.model_types[0]}",),
            ModelConfig,
            self.read_config,
            self.write_config,
            self.parts.rules,
            self.parts.ignored,
            self.parts.repeated,
        )


PUBLISHED = (
    PublishedArchitecture(
        "InternVLForConditionalGeneration",
        ("internvl",),
        ModelConfig,
        read_config,
        write_config,
        AS_TRANSFORMERS.rules,
        AS_TRANSFORMERS.ignored,
        AS_TRANSFORMERS.repeated,
        aliases=ALIASES,
    ),
    *(Chat(decoder).published for of in (internlm2, qwen2, llama) for decoder in of.PUBLISHED),
)
