"""Common code of published vision transformers: a patch embedding, a position table, and pre-norm blocks."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from configs.architectures import VisionConfig
from configs.transformer import PROJECTIONS, TransformerConfig
from mmjax.weights.published.key_table import Keys, Table, Values
from mmjax.weights.published.rules import PublishedArchitecture, Rule, linear_rules, norm_rules, require_round_trip
from mmjax.weights.published.table_architecture import table_architecture
from mmjax.weights.published.tensor_layouts import IDENTITY, LINEAR, Fused, PatchConvolution, Reshaped, TensorLayout

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "silu": "silu",
    "relu": "relu",
}
"""Names of activations here, by their names in transformers; of several names for one, the first is written."""

BIASES = {
    "attention/query": "query",
    "attention/key": "key",
    "attention/value": "value",
    "attention/output": "output",
    "mlp/gate": "mlp",
    "mlp/up": "mlp",
    "mlp/down": "mlp",
}
"""Name in `TransformerConfig.biases` of a projection's bias, by the path of the projection in a block."""

LAYER_SCALES = ("attention_scale", "mlp_scale")
"""Paths of the layer scales in a block; the names of their tensors do not end in `.weight`."""

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
"""Names in a block of CLIP and SigLIP, by the path in a block here."""

UNDESCRIBED_FIELDS = ("merge", "projector", "pixel_mean", "pixel_std")
"""Fields of VisionConfig that config.json does not describe."""


VIT_BASE_DEFAULTS = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "image_size": 224,
    "patch_size": 16,
    "num_channels": 3,
}
"""Values that transformers assumes for vision transformers where a file leaves them out; each model adds its own."""


@dataclasses.dataclass(frozen=True)
class PixelNormalisation:
    """Mean and standard deviation per channel of pixels in [0, 1], for folders without them.

    Attributes:
        mean: Mean of each channel.
        std: Standard deviation of each channel.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]


HALF_PIXELS = PixelNormalisation((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
IMAGENET_PIXELS = PixelNormalisation((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CLIP_PIXELS = PixelNormalisation((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))


def block_rules(block: str, names: Mapping[str, str], config: TransformerConfig) -> Iterator[Rule]:
    """Rules of a block.

    Args:
        block: Prefix of the names of its tensors.
        names: Names of its tensors, by their path in a block here.
        config: Says which projections and norms have a bias.
    """
    for path, name in names.items():
        if path in BIASES:
            yield from linear_rules(f"{block}.{name}", f"blocks/{path}", LINEAR, bias=BIASES[path] in config.biases)
        elif path in LAYER_SCALES:
            yield Rule(f"{block}.{name}", f"blocks/{path}/scale")
        else:
            yield from norm_rules(f"{block}.{name}", f"blocks/{path}", bias=norm_bias(config))


def norm_bias(config: TransformerConfig) -> bool:
    """Whether the norms of a transformer have a bias."""
    return config.norm == "layernorm" and config.norm_bias


def patch_embedding_rules(tensor: str, config: VisionConfig) -> tuple[Rule, ...]:
    """Rules of the projection of pixels: a convolution in the checkpoint, over frames too where a patch has several."""
    frames = (config.temporal_patch,) if config.temporal_patch > 1 else ()
    layout = PatchConvolution((*frames, config.patch, config.patch))
    return linear_rules(tensor, "embed/pixels", layout, bias=config.patch_bias)


def position_table_rule(tensor: str, config: VisionConfig, leading: tuple[int, ...] = ()) -> Rule:
    """Makes the rule of the position table, in raster order after the class token's position.

    Args:
        tensor: Name of the tensor.
        config: The encoder.
        leading: Leading dimensions of 1 that the tensor has.
    """
    patches = Reshaped((*leading, config.grid**2, config.width))
    if not config.class_token:
        return Rule(tensor, "embed/table/table", patches)
    part_layouts: tuple[TensorLayout, ...] = (Reshaped((*leading, 1, config.width)), patches)
    return Rule(tensor, ("embed/class_position", "embed/table/table"), Fused(len(leading), part_layouts))


def class_token_rule(tensor: str, config: VisionConfig, leading: tuple[int, ...] = ()) -> Rule:
    """Makes the rule of the class token; `leading` are leading dimensions of 1 that the tensor has."""
    return Rule(tensor, "embed/class_token", Reshaped((*leading, config.width)) if leading else IDENTITY)


def register_rules(tensor: str, config: VisionConfig) -> tuple[Rule, ...]:
    """Makes the rule of the registers, `[1, n, d]` in the checkpoint; none if the encoder has none."""
    layout = Reshaped((1, config.registers, config.width))
    return (Rule(tensor, "embed/registers", layout),) if config.registers else ()


def unused_block_patterns(block: str, config: VisionConfig) -> tuple[str, ...]:
    """Patterns of the tensors of blocks after the last one that is used; `block` has `{layer}` for the number."""
    numbers = range(config.depth, config.depth + config.unused_blocks)
    return tuple(f"{block.format(layer=number)}.*" for number in numbers)


def unused_block_count(key: str, layer: Any, depth: int) -> int:
    """Returns the number of blocks after the block whose outputs are used.

    Args:
        key: Key of config.json that names the block, for messages.
        layer: Its value: -1 for the last block.
        depth: Number of blocks.

    Raises:
        ValueError: The value is not a block counted from the last.
    """
    if not isinstance(layer, int) or not -depth <= layer < 0:
        raise ValueError(f"{key} is {layer!r}; only one from -1 to -{depth} can be computed")
    return -1 - layer


def read_encoder(values: Mapping[str, Any], pixels: PixelNormalisation, **fields: Any) -> VisionConfig:
    """Reads the configuration from a config.json with transformers' keys for vision transformers.

    Args:
        values: Contents of config.json; `image_mean` and `image_std` as preprocessor_config.json has them.
        pixels: Normalisation where `values` have none.
        **fields: Fields of the configuration that these keys do not describe.

    Raises:
        ValueError: A key has a value that cannot be computed.
    """
    return VisionConfig(**{**read_encoder_fields(values, pixels), **fields})


def read_encoder_fields(values: Mapping[str, Any], pixels: PixelNormalisation) -> dict[str, Any]:
    """Reads the fields of the configuration that these keys describe."""
    for key in ("image_size", "patch_size"):
        if not isinstance(values[key], int):
            raise ValueError(f"{key} is {values[key]!r}; only one number, for a square, can be computed")
    if values["hidden_act"] not in ACTIVATIONS:
        raise ValueError(f"hidden_act is {values['hidden_act']!r}; choose one of {', '.join(ACTIVATIONS)}")
    mean, std = values.get("image_mean", pixels.mean), values.get("image_std", pixels.std)
    return {
        "width": values["hidden_size"],
        "depth": values["num_hidden_layers"],
        "heads": values["num_attention_heads"],
        "ffn": values["intermediate_size"],
        "norm_epsilon": float(values["layer_norm_eps"]),
        "activation": ACTIVATIONS[values["hidden_act"]],
        "patch": values["patch_size"],
        "channels": values["num_channels"],
        "merge": 1,
        "pixel_mean": tuple(2 * value - 1 for value in mean),  # pixels are in [-1, 1] here, in [0, 1] there
        "pixel_std": tuple(2 * value for value in std),
        "grid": values["image_size"] // values["patch_size"],
        "positions": "learned",
    }


def read_layer_scale(key: str, value: Any) -> float:
    """Reads the initial value of layer scales, which is not 0, because 0 stands for no layer scales here.

    Raises:
        ValueError: The value is 0 or no number.
    """
    if not isinstance(value, int | float) or not value:
        raise ValueError(f"{key} is {value!r}; only a number other than 0 can be computed")
    return float(value)


def write_encoder(config: VisionConfig) -> dict[str, Any]:
    """Writes the keys that `read_encoder` reads.

    The image size is the one that the position table covers: 378 for a file with 384 and patches of 14.
    """
    return {
        "hidden_size": config.width,
        "num_hidden_layers": config.depth + config.unused_blocks,
        "num_attention_heads": config.heads,
        "intermediate_size": config.ffn,
        "layer_norm_eps": config.norm_epsilon,
        "hidden_act": published_activation(config.activation),
        "patch_size": config.patch,
        "num_channels": config.channels,
        "image_size": config.grid * config.patch,
    }


def published_activation(activation: str) -> str:
    """Returns the name of an activation in transformers."""
    published_names = {name: published for published, name in reversed(ACTIVATIONS.items())}
    return published_names[activation]


def require_encoder_round_trip(config: VisionConfig, read_back: VisionConfig) -> None:
    """As `require_round_trip`, for a config.json that describes all blocks, including unused ones.

    Args:
        config: The configuration that was written.
        read_back: The configuration that `read_config` returns for the config.json.

    Raises:
        ValueError: They differ in fields that config.json describes.
    """
    complete = dataclasses.replace(config, depth=config.depth + config.unused_blocks, unused_blocks=0)
    if config.unused_blocks:  # the norm after the last block is unused with it
        complete = dataclasses.replace(complete, final_norm=read_back.final_norm)
    require_round_trip(complete, read_back, UNDESCRIBED_FIELDS)


def encoder_architecture(
    name: str,
    model_types: tuple[str, ...],
    pixels: PixelNormalisation,
    keys: Table,
    **others: Any,
) -> PublishedArchitecture:
    """Makes a published vision transformer from the table of the keys that `read_encoder` does not read.

    Args:
        name: Name of the class that loads it.
        model_types: Its `model_type`s.
        pixels: Normalisation of pixels for folders without it.
        keys: The other keys, and the fields that no key describes.
        **others: Other arguments of `table_architecture`.
    """
    shared = Keys(lambda values: read_encoder_fields(values, pixels), write_encoder)
    return table_architecture(
        name,
        model_types,
        {"": VisionConfig},
        (shared, *keys),
        require_same=require_encoder_round_trip,
        **others,
    )


def of_whole_models(defaults: Mapping[str, Any]) -> Callable[[Values], Values]:
    """Completes the config.json of a tower, or of a whole model whose `vision_config` describes the tower."""
    return lambda values: {**defaults, **values, **values.get("vision_config", {})}


LAYER_SCALE = Keys(
    lambda values: {"layer_scale": read_layer_scale("layerscale_value", values["layerscale_value"])},
    lambda config: {"layerscale_value": config.layer_scale or 1.0},
)
"""The entry of the initial value of layer scales."""

QKV_BIAS = Keys(
    lambda values: {"biases": PROJECTIONS if values.get("qkv_bias", True) else ("output", "mlp")},
    lambda config: {"qkv_bias": "query" in config.biases},
)
"""The entry of the biases of queries, keys and values; all other projections have some."""
