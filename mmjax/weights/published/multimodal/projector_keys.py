"""Keys of config.json and tensors of projectors, and of the outputs that they take, which several models have."""

from typing import Any

from configs.architectures import VisionConfig
from configs.modules.projectors import MLPProjectorConfig
from mmjax.weights.published.activations import published_activation, read_activation
from mmjax.weights.published.key_table import Entry, Key, Keys, Values
from mmjax.weights.published.rules import Rule, linear_rules
from mmjax.weights.published.tensor_layouts import LINEAR

PROJECTOR = "multi_modal_projector"
PROJECTOR_ALIASES = ((f"model.{PROJECTOR}.", f"{PROJECTOR}."),)
"""Prefix of the projector's tensors in some files, with its prefix in the others."""

IMAGE_TOKENS = Keys(write=lambda encoder: {"image_seq_length": (encoder.grid // encoder.merge) ** 2})
"""The entry of the number of tokens of an image, which is written for others and not read."""


def mlp_rules(up: str, down: str) -> tuple[Rule, ...]:
    """Makes the rules of a projector of two matmuls, given their names."""
    return (
        *linear_rules(up, "projector/mlp/up", LINEAR, bias=True),
        *linear_rules(down, "projector/mlp/down", LINEAR, bias=True),
    )


def mlp_projector(norm: bool) -> Entry:
    """Makes the entry of a projector of two matmuls; `norm` says whether a norm is before them."""

    def read(activation: str) -> MLPProjectorConfig:
        return MLPProjectorConfig(norm=norm, activation=read_activation("projector_hidden_act", activation))

    def write(projector: Any) -> str:
        return published_activation(getattr(projector, "activation", "gelu"))

    return Key("projector_hidden_act", "projector", "gelu", read, write)


def feature_layer(key: str, tower: VisionConfig) -> Entry:
    """Makes the entry of the block whose outputs are used.

    Args:
        key: The key, whose value is -1 for the last block, as it is where files leave it out.
        tower: The tower with all its blocks.
    """

    def read(values: Values) -> dict[str, Any]:
        layer = values.get(key, -1)
        if not isinstance(layer, int) or not -tower.depth <= layer < 0:
            raise ValueError(f"{key} is {layer!r}; only one from -1 to -{tower.depth} can be computed")
        unused = -1 - layer
        final_norm = tower.final_norm and not unused
        return {"depth": tower.depth - unused, "unused_blocks": unused, "final_norm": final_norm}

    return Keys(read, lambda encoder: {key: -1 - encoder.unused_blocks})


def pixel_shuffle(key: str) -> Entry:
    """Makes the entry of the ratio of a pixel shuffle: one divided by the patches along a side of a square."""

    def read(ratio: float) -> int:
        merge = round(1 / ratio)
        if merge * ratio != 1:
            raise ValueError(f"{key} is {ratio}; only one divided by a whole number can be computed")
        return merge

    return Key(key, "merge", 0.5, read, lambda merge: 1 / merge)
