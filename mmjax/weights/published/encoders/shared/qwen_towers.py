"""Common code of the vision towers of Qwen2-VL, Qwen2.5-VL and Qwen3-VL.

They have patches of two frames without a class token, rotary positions by row and column, mostly one tensor for
queries, keys and values, and a merger: a norm of every patch, here the encoder's final norm, and two matmuls over
squares of patches, here the projector. A tower's own checkpoint describes no backbone, so that it has no projector;
`merger_rules` are for whole models.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any

from configs.architectures import VisionConfig
from configs.modules.projectors import MLPProjectorConfig
from configs.modules.transformer import PROJECTIONS
from mmjax.weights.published.encoders.shared.vision_keys import ACTIVATION, PATCH, rotary_positions
from mmjax.weights.published.encoders.shared.vision_rules import (
    QUERY_KEY_VALUE,
    TIMM_NAMES,
    block_rules,
    norm_bias,
    patch_embedding_rules,
)
from mmjax.weights.published.encoders.shared.vision_transformer import encoder_architecture
from mmjax.weights.published.key_table import Fields, Key, Table
from mmjax.weights.published.rules import (
    PublishedArchitecture,
    Rule,
    fused_rules,
    linear_rules,
    norm_rules,
    require_round_trip,
)
from mmjax.weights.published.tensor_layouts import LINEAR

BLOCK = "blocks.{layer}"
MERGER = "merger"
NORM_EPSILON = 1e-6
PROJECTOR = MLPProjectorConfig(activation="gelu", hidden="positions")

DEFAULTS = {
    "depth": 32,
    "num_heads": 16,
    "in_channels": 3,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}
"""Values that transformers assumes for these towers where a file leaves them out; each tower adds its own."""


@dataclasses.dataclass(frozen=True)
class MergerNames:
    """Names in a merger.

    Attributes:
        norm: The norm of every patch.
        up: The first matmul.
        down: The second matmul.
    """

    norm: str
    up: str
    down: str


MERGER_NAMES = MergerNames("ln_q", "mlp.0", "mlp.2")
QWEN3_MERGER_NAMES = MergerNames("norm", "linear_fc1", "linear_fc2")


def tower_rules(config: VisionConfig, own_names: Mapping[str, str], merger: MergerNames) -> tuple[Rule, ...]:
    """Rules of a tower without its position table and its projector.

    Args:
        config: The tower.
        own_names: Names in a block besides `TIMM_NAMES`.
        merger: Names in the merger.
    """
    fused = fused_rules(f"{BLOCK}.attn.qkv", "blocks/attention", QUERY_KEY_VALUE, bias=True)
    return (
        *patch_embedding_rules("patch_embed.proj", config),
        *(() if "attention/query" in own_names else fused),
        *block_rules(BLOCK, {**TIMM_NAMES, **own_names}, config),
        *norm_rules(f"{MERGER}.{merger.norm}", "norm/norm", norm_bias(config)),
    )


def merger_rules(config: VisionConfig, merger: MergerNames) -> Iterator[Rule]:
    """Rules of the projector, and of the projectors of tapped layers, for whole models."""
    last = "projector/last" if config.tapped_layers else "projector"
    yield from _mlp_rules(MERGER, f"{last}/mlp", merger)
    for number in range(len(config.tapped_layers)):
        tap = f"deepstack_merger_list.{number}"
        yield from norm_rules(f"{tap}.{merger.norm}", f"projector/taps/{number}/norm", bias=True)
        yield from _mlp_rules(tap, f"projector/taps/{number}/mlp", merger)


def _mlp_rules(tensor: str, path: str, merger: MergerNames) -> Iterator[Rule]:
    yield from linear_rules(f"{tensor}.{merger.up}", f"{path}/up", LINEAR, bias=True)
    yield from linear_rules(f"{tensor}.{merger.down}", f"{path}/down", LINEAR, bias=True)


def merger_patterns(merger: MergerNames) -> tuple[str, ...]:
    """Patterns of the merger tensors that a tower without its backbone does not have."""
    return (f"{MERGER}.{merger.up}.*", f"{MERGER}.{merger.down}.*", "deepstack_merger_list.*")


TOWER_KEYS: Table = (
    Key("depth", "depth"),
    Key("num_heads", "heads"),
    ACTIVATION,
    PATCH,
    Key("in_channels", "channels"),
    Key("spatial_merge_size", "merge"),
    Key("temporal_patch_size", "temporal_patch"),
    rotary_positions("axial", "default"),
    Fields(
        {
            "norm_epsilon": NORM_EPSILON,
            "biases": PROJECTIONS,
            "patch_bias": False,
            "positions": "none",
            "projector": PROJECTOR,
        }
    ),
)
"""Keys of all towers."""


def tower_architecture(
    name: str, model_types: tuple[str, ...], keys: Table, merger: MergerNames, **others: Any
) -> PublishedArchitecture:
    """Makes the architecture of a tower.

    Args:
        name: Name of the class that loads it.
        model_types: Its `model_type`s.
        keys: Its own keys besides `TOWER_KEYS`.
        merger: Names in the merger.
        **others: Other arguments of `table_architecture`.
    """
    return encoder_architecture(
        name,
        model_types,
        (*TOWER_KEYS, *keys),
        require_same=functools.partial(require_round_trip, except_fields=("pixel_mean", "pixel_std")),
        ignored=lambda config: merger_patterns(merger),
        **others,
    )
