"""What published vision transformers share: a patch embedding with a table of positions, and blocks of two norms."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from configs.architectures import VisionConfig
from configs.transformer import TransformerConfig
from mmjax.weights.published.round_trip import require_round_trip
from mmjax.weights.published.rules import Rule, linear_rules, norm_rules
from mmjax.weights.published.tensor_layouts import IDENTITY, LINEAR, Fused, PatchConvolution, Reshaped, TensorLayout

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "silu": "silu",
    "relu": "relu",
}
"""transformers' names and ours; of several for one of ours, the first is written."""

BIASES = {
    "attention/query": "query",
    "attention/key": "key",
    "attention/value": "value",
    "attention/output": "output",
    "mlp/gate": "mlp",
    "mlp/up": "mlp",
    "mlp/down": "mlp",
}
"""By the path of a projection in a block, what `biases` calls its bias."""

LAYER_SCALES = ("attention_scale", "mlp_scale")
"""Paths in a block of vectors, which have no `.weight` in their names."""

CLIP_BLOCK_NAMES = {
    "attention_norm": "layer_norm1",
    "attention/query": "self_attn.q_proj",
    "attention/key": "self_attn.k_proj",
    "attention/value": "self_attn.v_proj",
    "attention/output": "self_attn.out_proj",
    "mlp_norm": "layer_norm2",
    "mlp/up": "mlp.fc1",
    "mlp/down": "mlp.fc2",
}
"""By the path in a block, the name in CLIP's, which SigLIP has too."""

OURS_ALONE = ("merge", "projector", "pixel_mean", "pixel_std")
"""Fields that config.json does not tell."""


VIT_BASE_DEFAULTS = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "image_size": 224,
    "patch_size": 16,
    "num_channels": 3,
}
"""What transformers takes of a vision transformer where a file says nothing; with each file's own, its defaults."""


@dataclasses.dataclass(frozen=True)
class PixelNormalisation:
    """How a published encoder's pixels are normalised, per channel of [0, 1], where its folder does not say it."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]


HALF_PIXELS = PixelNormalisation((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
IMAGENET_PIXELS = PixelNormalisation((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CLIP_PIXELS = PixelNormalisation((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))


def block_rules(block: str, names: Mapping[str, str], config: TransformerConfig) -> Iterator[Rule]:
    """Rules of a block.

    Args:
        block: What its tensors' names begin with.
        names: By the path in our block, theirs.
        config: Says which projections and norms have a bias.
    """
    for ours, theirs in names.items():
        if ours in BIASES:
            yield from linear_rules(f"{block}.{theirs}", f"blocks/{ours}", LINEAR, bias=BIASES[ours] in config.biases)
        elif ours in LAYER_SCALES:
            yield Rule(f"{block}.{theirs}", f"blocks/{ours}/scale")
        else:
            yield from norm_rules(f"{block}.{theirs}", f"blocks/{ours}", bias=norm_bias(config))


def norm_bias(config: TransformerConfig) -> bool:
    """Whether the norms of a transformer have one."""
    return config.norm == "layernorm" and config.norm_bias


def patch_embedding_rules(theirs: str, config: VisionConfig) -> tuple[Rule, ...]:
    """Rules of the projection of pixels, a convolution there."""
    return linear_rules(theirs, "embed/pixels", PatchConvolution((config.patch, config.patch)), bias=config.patch_bias)


def position_table_rule(theirs: str, config: VisionConfig, before: tuple[int, ...] = ()) -> Rule:
    """The rule of a table of positions, row by row, the class token's before them; `before` are dimensions of 1."""
    patches = Reshaped((*before, config.grid**2, config.width))
    if not config.class_token:
        return Rule(theirs, "embed/table/table", patches)
    each: tuple[TensorLayout, ...] = (Reshaped((*before, 1, config.width)), patches)
    return Rule(theirs, ("embed/class_position", "embed/table/table"), Fused(len(before), each))


def class_token_rule(theirs: str, config: VisionConfig, before: tuple[int, ...] = ()) -> Rule:
    """The rule of the class token; `before` are dimensions of 1."""
    return Rule(theirs, "embed/class_token", Reshaped((*before, config.width)) if before else IDENTITY)


def unused_block_patterns(block: str, config: VisionConfig) -> tuple[str, ...]:
    """Patterns of the tensors of blocks behind the last that we have; `block` has `{layer}` for its number."""
    numbers = range(config.depth, config.depth + config.unused_blocks)
    return tuple(f"{block.format(layer=number)}.*" for number in numbers)


def unused_block_count(key: str, layer: Any, depth: int) -> int:
    """How many blocks stand behind the one whose outputs are taken, the last being -1.

    Args:
        key: That says so in config.json, for messages.
        layer: What it says.
        depth: Blocks in all.

    Raises:
        ValueError: It is not one of the blocks, counted from the last.
    """
    if not isinstance(layer, int) or not -depth <= layer < 0:
        raise ValueError(f"{key} is {layer!r}; only one from -1 to -{depth} can be computed")
    return -1 - layer


def read_encoder(values: Mapping[str, Any], pixels: PixelNormalisation, **others: Any) -> VisionConfig:
    """Of a config.json with transformers' keys for vision transformers.

    Args:
        values: What it says; `image_mean` and `image_std` as preprocessor_config.json has them.
        pixels: If that says nothing.
        **others: Fields of our own beside those.

    Raises:
        ValueError: A key asks for what can't be computed.
    """
    for key in ("image_size", "patch_size"):
        if not isinstance(values[key], int):
            raise ValueError(f"{key} is {values[key]!r}; only one number, for a square, can be computed")
    if values["hidden_act"] not in ACTIVATIONS:
        raise ValueError(f"hidden_act is {values['hidden_act']!r}; choose one of {', '.join(ACTIVATIONS)}")
    mean, deviation = values.get("image_mean", pixels.mean), values.get("image_std", pixels.deviation)
    return VisionConfig(
        width=values["hidden_size"],
        depth=values["num_hidden_layers"],
        heads=values["num_attention_heads"],
        ffn=values["intermediate_size"],
        norm_epsilon=float(values["layer_norm_eps"]),
        activation=ACTIVATIONS[values["hidden_act"]],
        patch=values["patch_size"],
        channels=values["num_channels"],
        merge=1,
        pixel_mean=tuple(2 * value - 1 for value in mean),  # ours are of pixels in [-1, 1]
        pixel_std=tuple(2 * value for value in deviation),
        positions="learned",
        grid=values["image_size"] // values["patch_size"],
        **others,
    )


def write_encoder(config: VisionConfig) -> dict[str, Any]:
    """The keys that `read_encoder` reads. The side of images is what the table is for: 378 where 384 was said."""
    called = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    return {
        "hidden_size": config.width,
        "num_hidden_layers": config.depth + config.unused_blocks,
        "num_attention_heads": config.heads,
        "intermediate_size": config.ffn,
        "layer_norm_eps": config.norm_epsilon,
        "hidden_act": called[config.activation],
        "patch_size": config.patch,
        "num_channels": config.channels,
        "image_size": config.grid * config.patch,
    }


def require_encoder_round_trip(config: VisionConfig, again: VisionConfig) -> None:
    """`require_told`, where blocks that we leave out make no difference.

    Args:
        config: What was written.
        again: What reading it gives.

    Raises:
        ValueError: They differ in what config.json tells.
    """
    whole = dataclasses.replace(config, depth=config.depth + config.unused_blocks, unused_blocks=0)
    if config.unused_blocks:  # the norm behind the last block is left out with it
        whole = dataclasses.replace(whole, final_norm=again.final_norm)
    require_round_trip(whole, again, OURS_ALONE)
