"""Common code of the vision towers of Qwen2-VL, Qwen2.5-VL and Qwen3-VL.

They have patches of two frames without a class token, rotary positions by row and column, mostly one tensor for
queries, keys and values, and a merger: a norm of every patch, here the encoder's final norm, and two matmuls over
squares of patches, here the projector. A tower's own checkpoint describes no backbone, so that it has no projector;
`merger_rules` are for whole models.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from configs.architectures import VisionConfig
from configs.projectors import MLPProjectorConfig
from configs.transformer import PROJECTIONS
from configs.vision_rope import VisionRope
from mmjax.weights.published.encoders.shared.vision_transformer import (
    ACTIVATIONS,
    PixelNormalisation,
    block_rules,
    norm_bias,
    patch_embedding_rules,
    published_activation,
)
from mmjax.weights.published.rules import Rule, linear_rules, norm_rules, require_round_trip
from mmjax.weights.published.tensor_layouts import IDENTITY, LINEAR, Fused

BLOCK = "blocks.{layer}"
MERGER = "merger"
UNDESCRIBED_FIELDS = ("pixel_mean", "pixel_std")
NORM_EPSILON = 1e-6
ROPE_BASE = 10000.0
PROJECTOR = MLPProjectorConfig(activation="gelu", hidden="positions")

NAMES = {"attention_norm": "norm1", "attention/output": "attn.proj", "mlp_norm": "norm2"}
"""Names in a block of all towers, by the path in a block here; the names of the feed-forward layers differ."""

ATTENTION_NAMES = {"attention/query": "attn.q", "attention/key": "attn.k", "attention/value": "attn.v"}
"""Names of the projections where they are no single tensor (Qwen2.5-Omni)."""

MLP_NAMES = {"mlp/up": "mlp.fc1", "mlp/down": "mlp.fc2"}
GATED_MLP_NAMES = {"mlp/gate": "mlp.gate_proj", "mlp/up": "mlp.up_proj", "mlp/down": "mlp.down_proj"}
QWEN3_MLP_NAMES = {"mlp/up": "mlp.linear_fc1", "mlp/down": "mlp.linear_fc2"}

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
        own_names: Names in a block besides `NAMES`.
        merger: Names in the merger.
    """
    return (
        *patch_embedding_rules("patch_embed.proj", config),
        *(() if "attention/query" in own_names else _fused_attention_rules()),
        *block_rules(BLOCK, {**NAMES, **own_names}, config),
        *norm_rules(f"{MERGER}.{merger.norm}", "norm/norm", norm_bias(config)),
    )


def _fused_attention_rules() -> tuple[Rule, ...]:
    kernels, biases = (
        tuple(f"blocks/attention/{name}/{parameter}" for name in ("query", "key", "value"))
        for parameter in ("kernel", "bias")
    )
    return (
        Rule(f"{BLOCK}.attn.qkv.weight", kernels, Fused()),
        Rule(f"{BLOCK}.attn.qkv.bias", biases, Fused(part_layout=IDENTITY)),
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


def with_defaults(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the contents of config.json with defaults where it leaves values out.

    Raises:
        ValueError: A patch is no square.
    """
    values = {**defaults, **values}
    for key in ("patch_size", "temporal_patch_size"):
        if not isinstance(values[key], int):
            raise ValueError(f"{key} is {values[key]!r}; only one number can be computed")
    return values


def read_tower(values: Mapping[str, Any], pixels: PixelNormalisation, **fields: Any) -> VisionConfig:
    """Reads the configuration from the keys that all towers have.

    Args:
        values: Contents of config.json with its defaults; `image_mean` and `image_std` as preprocessor_config.json has
            them.
        pixels: Normalisation where `values` have none.
        **fields: Fields of the configuration that these keys do not describe.

    Raises:
        ValueError: A key has a value that cannot be computed.
    """
    if values["hidden_act"] not in ACTIVATIONS:
        raise ValueError(f"hidden_act is {values['hidden_act']!r}; choose one of {', '.join(ACTIVATIONS)}")
    mean, std = values.get("image_mean", pixels.mean), values.get("image_std", pixels.std)
    described = {
        "depth": values["depth"],
        "heads": values["num_heads"],
        "norm_epsilon": NORM_EPSILON,
        "activation": ACTIVATIONS[values["hidden_act"]],
        "biases": PROJECTIONS,
        "patch": values["patch_size"],
        "channels": values["in_channels"],
        "merge": values["spatial_merge_size"],
        "temporal_patch": values["temporal_patch_size"],
        "pixel_mean": tuple(2 * value - 1 for value in mean),  # pixels are in [-1, 1] here, in [0, 1] there
        "pixel_std": tuple(2 * value for value in std),
        "patch_bias": False,
        "positions": "none",
        "rope": VisionRope(_rope_base(values.get("rope_parameters") or {})),
        "projector": PROJECTOR,
    }
    return VisionConfig(**{**described, **fields})


def _rope_base(parameters: Mapping[str, Any]) -> float:
    kind = parameters.get("rope_type", "axial")
    if kind not in ("axial", "default"):
        raise ValueError(f"rope_parameters.rope_type is {kind!r}; only 'axial' can be computed")
    return float(parameters.get("rope_theta", ROPE_BASE))


def write_tower(config: VisionConfig) -> dict[str, Any]:
    """Writes the keys that `read_tower` reads."""
    return {
        "depth": config.depth,
        "num_heads": config.heads,
        "hidden_act": published_activation(config.activation),
        "patch_size": config.patch,
        "in_channels": config.channels,
        "spatial_merge_size": config.merge,
        "temporal_patch_size": config.temporal_patch,
        "rope_parameters": {"rope_theta": config.rope.base if config.rope else ROPE_BASE, "rope_type": "axial"},
    }


def require_tower_round_trip(config: VisionConfig, read_back: VisionConfig) -> None:
    """As `require_round_trip`, without the fields that config.json does not describe."""
    require_round_trip(config, read_back, UNDESCRIBED_FIELDS)
