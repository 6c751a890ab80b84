"""InternVL (arXiv 2404.16821): its authors' `InternVLChatModel`, and transformers' `InternVLForConditionalGeneration`.

Squares of 2 x 2 patches of InternViT pass through a norm and two matmuls into the tokens of a decoder. The pixel
shuffle joins the patches of a square row by row, which is their order here too, so that no weight has to be permuted.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from configs.architectures import BackboneConfig, ModelConfig, VisionConfig
from configs.projectors import MLPProjectorConfig
from mmjax.weights.published.activations import published_activation, read_activation
from mmjax.weights.published.decoders.dense import internlm2, llama, qwen2, qwen3
from mmjax.weights.published.decoders.experts import qwen3_moe
from mmjax.weights.published.encoders.shared.vision_keys import unused_block_count
from mmjax.weights.published.encoders.vision import internvit
from mmjax.weights.published.multimodal.multimodal_format import MultimodalFormat, PublishedEncoder, by_model_type
from mmjax.weights.published.rules import PublishedArchitecture, Rule, linear_rules, norm_rules
from mmjax.weights.published.tensor_layouts import LINEAR


def projector_rules(norm: str, up: str, down: str) -> Callable[[VisionConfig], tuple[Rule, ...]]:
    """Rules of the projector by the names of its norm and its two matmuls."""
    rules = (
        *norm_rules(norm, "projector/norm", bias=True),
        *linear_rules(up, "projector/mlp/up", LINEAR, bias=True),
        *linear_rules(down, "projector/mlp/down", LINEAR, bias=True),
    )
    return lambda encoder: rules


def vision_language_model(
    tower: VisionConfig, backbone: BackboneConfig, downsample_ratio: float, unused_blocks: int, activation: str
) -> ModelConfig:
    """Makes the configuration of the whole model.

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
    encoder = dataclasses.replace(
        tower,
        depth=tower.depth - unused_blocks,
        unused_blocks=unused_blocks,
        final_norm=tower.final_norm and not unused_blocks,
        merge=merge,
        projector=MLPProjectorConfig(norm=True, activation=read_activation("projector_hidden_act", activation)),
    )
    return ModelConfig((encoder,), backbone, ())


PROJECTOR = "multi_modal_projector"
TOWER = PublishedEncoder(
    prefix="vision_tower.",
    architectures=by_model_type(internvit.TRANSFORMERS),
    projector=projector_rules(f"{PROJECTOR}.layer_norm", f"{PROJECTOR}.linear_1", f"{PROJECTOR}.linear_2"),
)
FORMAT = MultimodalFormat(
    encoders=(TOWER,),
    decoders=by_model_type(*qwen2.PUBLISHED, *qwen3.PUBLISHED, *qwen3_moe.PUBLISHED, *llama.PUBLISHED),
    tied_by_default=True,
    own_aliases=((f"model.{PROJECTOR}.", f"{PROJECTOR}."),),
)


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """Reads transformers' InternVLConfig.

    Raises:
        ValueError: A key has a value that cannot be computed.
    """
    strategy = values.get("vision_feature_select_strategy", "default")
    if strategy != "default":
        raise ValueError(f"vision_feature_select_strategy is {strategy!r}; only 'default' can be computed")
    tower = TOWER.read_config(values)
    unused_blocks = unused_block_count("vision_feature_layer", values.get("vision_feature_layer", -1), tower.depth)
    ratio, activation = values.get("downsample_ratio", 0.5), values.get("projector_hidden_act", "gelu")
    return vision_language_model(tower, FORMAT.read_decoder_config(values), ratio, unused_blocks, activation)


def write_config(model: ModelConfig) -> dict[str, Any]:
    """Writes transformers' InternVLConfig, without `image_token_id`, whose default there is 151667."""
    (encoder,) = model.encoders
    assert isinstance(encoder, VisionConfig), "the format has checked it"
    return {
        "downsample_ratio": 1 / encoder.merge,
        "projector_hidden_act": published_activation(getattr(encoder.projector, "activation", "gelu")),
        "vision_feature_layer": -1 - encoder.unused_blocks,
        "vision_feature_select_strategy": "default",
        "image_seq_length": (encoder.grid // encoder.merge) ** 2,
        "vision_config": TOWER.write_config(encoder),
        "text_config": FORMAT.write_decoder_config(model.backbone),
    }


CHAT_TOWER = PublishedEncoder(
    prefix="vision_model.",
    architectures=by_model_type(internvit.ORIGINAL),
    projector=projector_rules("mlp1.0", "mlp1.1", "mlp1.3"),
)


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
    def format(self) -> MultimodalFormat:
        """The modules of a checkpoint and their names in it."""
        return MultimodalFormat(
            encoders=(CHAT_TOWER,),
            decoders=by_model_type(self.decoder),
            decoder_key="llm_config",
            tying="decoder",
        )

    def read_config(self, values: Mapping[str, Any]) -> ModelConfig:
        """Reads InternVLChatConfig.

        Raises:
            ValueError: A key has a value that cannot be computed.
        """
        if values.get("ps_version", "v1") != "v2":
            raise ValueError(
                "ps_version is 'v1', which transposes rows and columns of a map; only 'v2' can be computed"
            )
        tower = CHAT_TOWER.read_config(values)
        unused_blocks = unused_block_count("select_layer", values.get("select_layer", -1), tower.depth)
        backbone, ratio = self.format.read_decoder_config(values), values.get("downsample_ratio", 0.5)
        return vision_language_model(tower, backbone, ratio, unused_blocks, "gelu")

    def write_config(self, model: ModelConfig) -> dict[str, Any]:
        """Writes InternVLChatConfig."""
        (encoder,) = model.encoders
        assert isinstance(encoder, VisionConfig), "the format has checked it"
        return {
            "architectures": ["InternVLChatModel"],
            "model_type": "internvl_chat",
            "downsample_ratio": 1 / encoder.merge,
            "ps_version": "v2",
            "select_layer": -1 - encoder.unused_blocks,
            "force_image_size": encoder.grid * encoder.patch,
            "vision_config": CHAT_TOWER.write_config(encoder),
            "llm_config": self.format.write_decoder_config(model.backbone),
        }

    @property
    def architecture(self) -> PublishedArchitecture:
        """The architecture; `registry.model_type_of` makes its model type from config.json."""
        model_types = (f"internvl_chat/{self.decoder.model_types[0]}",)
        name = f"InternVLChatModel of {self.decoder.name}"
        return self.format.published(name, model_types, self.read_config, self.write_config)


CHAT_DECODERS = (
    *internlm2.PUBLISHED,
    *qwen2.PUBLISHED,
    *qwen3.PUBLISHED,
    *qwen3_moe.PUBLISHED,
    *llama.PUBLISHED,
)
"""Decoders of the authors' own format: InternVL 1.5 to 3.5."""

PUBLISHED = (
    FORMAT.published("InternVLForConditionalGeneration", ("internvl",), read_config, write_config),
    *(InternVLChat(decoder).architecture for decoder in CHAT_DECODERS),
)
