"""Llama 4: its vision tower, an adapter behind it, one matmul, and the text models."""

from typing import Any

from configs.architectures import VisionConfig
from configs.modules.projectors import AdapterProjectorConfig
from mmjax.weights.published.decoders.experts import llama4 as text
from mmjax.weights.published.encoders.vision import llama4 as vision
from mmjax.weights.published.key_table import Fixed, Keys, Nested, Table, Values
from mmjax.weights.published.multimodal.multimodal_format import MultimodalFormat, PublishedEncoder, by_model_type
from mmjax.weights.published.multimodal.projector_keys import PROJECTOR, PROJECTOR_ALIASES, pixel_shuffle
from mmjax.weights.published.rules import linear_rules
from mmjax.weights.published.tensor_layouts import LINEAR

TOWER_PREFIX = "vision_model."
WIDTHS = {"projector_input_dim": 4096, "projector_output_dim": 4096, "vision_output_dim": 7680}
"""Keys of vision_config for widths of the adapter, with transformers' defaults."""

PROJECTOR_RULES = (
    *linear_rules(f"{TOWER_PREFIX}vision_adapter.mlp.fc1", "projector/mlp/up", LINEAR, bias=False),
    *linear_rules(f"{TOWER_PREFIX}vision_adapter.mlp.fc2", "projector/mlp/down", LINEAR, bias=False),
    *linear_rules(f"{PROJECTOR}.linear_1", "projector/linear", LINEAR, bias=False),
)
"""Rules of the adapter's two matmuls and of the matmul behind the adapter."""


def read_adapter(values: Values) -> dict[str, Any]:
    """Reads the adapter, whose widths must be equal."""
    widths = {key: values.get(key, default) for key, default in WIDTHS.items()}
    if len(set(widths.values())) > 1:
        named = ", ".join(f"{key} is {width}" for key, width in widths.items())
        raise ValueError(f"{named}; only equal widths can be computed")
    return {"projector": AdapterProjectorConfig(widths["projector_output_dim"])}


def write_adapter(encoder: VisionConfig) -> dict[str, Any]:
    """The inverse of `read_adapter`. Raises ValueError for another projector."""
    if not isinstance(encoder.projector, AdapterProjectorConfig):
        raise ValueError(f"projector is {encoder.projector}; in Llama 4 it is an AdapterProjectorConfig")
    return dict.fromkeys(WIDTHS, encoder.projector.width)


def adapter_keys(tower: VisionConfig) -> Table:
    """Entries of the keys of vision_config that the tower alone does not have."""
    shuffle = pixel_shuffle("pixel_shuffle_ratio")

    def read_merge(values: Values) -> dict[str, Any]:
        fields = shuffle.read(values)
        if fields["merge"] ** 2 * tower.width != tower.ffn:
            raise ValueError(
                f"pixel_shuffle_ratio is {1 / fields['merge']} for a tower of width {tower.width} and "
                f"intermediate_size {tower.ffn}; the latter must be the width by the square of one over the ratio"
            )
        return fields

    own = (
        Fixed("vision_feature_select_strategy", "default", written=True),
        Fixed("multi_modal_projector_bias", False, written=True),
        Keys(read_adapter, write_adapter),
        Keys(read_merge, shuffle.write),
    )
    return (Nested("vision_config", own),)


TOWER = PublishedEncoder(
    prefix=TOWER_PREFIX,
    architectures=by_model_type(*vision.PUBLISHED),
    projector=lambda encoder: PROJECTOR_RULES,
    keys=adapter_keys,
    ignored=("rotary_embedding.*",),
)
FORMAT = MultimodalFormat(
    encoders=(TOWER,),
    decoders=by_model_type(*text.PUBLISHED),
    own_aliases=PROJECTOR_ALIASES,
)
PUBLISHED = (FORMAT.published("Llama4ForConditionalGeneration", ("llama4",)),)
