"""Llama 4: its vision tower, an adapter behind it, one matmul, and the text models."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from configs.architectures import ModelConfig, VisionConfig
from configs.projectors import AdapterProjectorConfig
from mmjax.weights.published.decoders.experts import llama4 as text
from mmjax.weights.published.encoders.vision import llama4 as vision
from mmjax.weights.published.multimodal.multimodal_format import MultimodalFormat, PublishedEncoder, by_model_type
from mmjax.weights.published.rules import Rule, linear_rules
from mmjax.weights.published.tensor_layouts import LINEAR

TOWER_PREFIX, PROJECTOR = "vision_model.", "multi_modal_projector"
ADAPTER = {
    "projector_input_dim": 4096,
    "projector_output_dim": 4096,
    "vision_output_dim": 7680,
    "pixel_shuffle_ratio": 0.5,
    "vision_feature_select_strategy": "default",
    "multi_modal_projector_bias": False,
}
"""Keys of vision_config that the tower alone does not have, with transformers' defaults."""

WIDTHS = ("projector_input_dim", "projector_output_dim", "vision_output_dim")


def projector_rules(encoder: VisionConfig) -> tuple[Rule, ...]:
    """Rules of the adapter's two matmuls and of the matmul behind the adapter."""
    del encoder
    return tuple(
        rule
        for name, path in (
            (f"{TOWER_PREFIX}vision_adapter.mlp.fc1", "mlp/up"),
            (f"{TOWER_PREFIX}vision_adapter.mlp.fc2", "mlp/down"),
            (f"{PROJECTOR}.linear_1", "linear"),
        )
        for rule in linear_rules(name, f"projector/{path}", LINEAR, bias=False)
    )


TOWER = PublishedEncoder(
    prefix=TOWER_PREFIX,
    architectures=by_model_type(*vision.PUBLISHED),
    projector=projector_rules,
    ignored=("rotary_embedding.*",),
)
FORMAT = MultimodalFormat(
    encoders=(TOWER,),
    decoders=by_model_type(*text.PUBLISHED),
    own_aliases=((f"model.{PROJECTOR}.", f"{PROJECTOR}."),),
)


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """Reads transformers' Llama4Config.

    Raises:
        ValueError: A key has a value that cannot be computed.
    """
    own = {**ADAPTER, **values["vision_config"]}
    for key in ("vision_feature_select_strategy", "multi_modal_projector_bias"):
        if own[key] != ADAPTER[key]:
            raise ValueError(f"vision_config.{key} is {own[key]!r}; only {ADAPTER[key]!r} can be computed")
    widths = {key: own[key] for key in WIDTHS}
    if len(set(widths.values())) > 1:
        raise ValueError(f"vision_config has {widths}; only equal widths can be computed")
    tower = TOWER.read_config(values)
    merge = round(1 / own["pixel_shuffle_ratio"])
    if merge * own["pixel_shuffle_ratio"] != 1 or merge**2 * tower.width != tower.ffn:
        raise ValueError(
            f"vision_config.pixel_shuffle_ratio is {own['pixel_shuffle_ratio']} for a tower of width {tower.width} and "
            f"intermediate_size {tower.ffn}; the latter must be the width by the square of one over the ratio"
        )
    projector = AdapterProjectorConfig(own["projector_output_dim"])
    encoder = dataclasses.replace(tower, merge=merge, projector=projector)
    return ModelConfig((encoder,), FORMAT.read_decoder_config(values), ())


def write_config(model: ModelConfig) -> dict[str, Any]:
    """Writes transformers' Llama4Config, without the ids of image tokens."""
    (encoder,) = model.encoders
    assert isinstance(encoder, VisionConfig), "the format has checked it"
    if not isinstance(encoder.projector, AdapterProjectorConfig):
        raise ValueError(f"projector is {encoder.projector}; in Llama 4 it is an AdapterProjectorConfig")
    adapter = {**ADAPTER, **dict.fromkeys(WIDTHS, encoder.projector.width), "pixel_shuffle_ratio": 1 / encoder.merge}
    return {
        "vision_config": {**TOWER.write_config(encoder), **adapter},
        "text_config": FORMAT.write_decoder_config(model.backbone),
    }


PUBLISHED = (FORMAT.published("Llama4ForConditionalGeneration", ("llama4",), read_config, write_config),)
