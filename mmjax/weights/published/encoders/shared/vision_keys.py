"""Entries of the tables of published vision transformers: transformers' keys, and the checks of their values."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

from configs.architectures import VisionConfig
from configs.attention.vision_rope import VisionRope
from configs.modules.transformer import PROJECTIONS
from mmjax.weights.published.activations import activation_key
from mmjax.weights.published.key_table import Entry, Key, Keys, Table, Values


@dataclasses.dataclass(frozen=True)
class PixelNormalisation:
    """The entry of the normalisation of pixels, `image_mean` and `image_std` as preprocessor_config.json has them.

    Attributes:
        mean: Mean of each channel of pixels in [0, 1], for folders without it.
        std: Standard deviation of each channel, likewise.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def read(self, values: Values) -> dict[str, Any]:
        """Returns the fields: pixels are in [-1, 1] here, in [0, 1] there."""
        mean, std = values.get("image_mean", self.mean), values.get("image_std", self.std)
        return {
            "pixel_mean": tuple(2 * value - 1 for value in mean),
            "pixel_std": tuple(2 * value for value in std),
        }

    def write(self, config: VisionConfig) -> dict[str, Any]:
        """Returns no key: config.json has none of these."""
        del config
        return {}


HALF_PIXELS = PixelNormalisation((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
IMAGENET_PIXELS = PixelNormalisation((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CLIP_PIXELS = PixelNormalisation((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))


def one_side(key: str, side: Any) -> int:
    """Returns the side of a square. Raises ValueError if the value of the key is not one number."""
    if not isinstance(side, int):
        raise ValueError(f"{key} is {side!r}; only one number, for a square, can be computed")
    return side


def square_side(key: str, sides: Any) -> int:
    """Returns the side of a square that is one number, or several. Raises ValueError if it is no square."""
    lengths = tuple(sides) if isinstance(sides, list | tuple) else (sides,)
    if not lengths or any(side != lengths[0] or not isinstance(side, int) for side in lengths):
        raise ValueError(f"{key} is {sides!r}; only a square can be computed")
    return lengths[0]


def patches(
    image_key: str = "image_size",
    read_side: Callable[[str, Any], int] = one_side,
    write_side: Callable[[int], Any] = lambda side: side,
) -> Entry:
    """Makes the entry of the sides of patches and images.

    The image size is written that the position table covers: 378 for a file with 384 and patches of 14.

    Args:
        image_key: Key of the image size.
        read_side: Reads a side from a key and its value.
        write_side: Writes a side.
    """

    def read(values: Values) -> dict[str, Any]:
        patch, image = (read_side(key, values[key]) for key in ("patch_size", image_key))
        return {"patch": patch, "grid": image // patch}

    def write(config: VisionConfig) -> dict[str, Any]:
        return {"patch_size": write_side(config.patch), image_key: write_side(config.grid * config.patch)}

    return Keys(read, write)


def square_table(key: str) -> Key:
    """Makes the entry of the number of positions in a square table."""

    def read_side(count: int) -> int:
        side = math.isqrt(count)
        if side**2 != count:
            raise ValueError(f"{key} is {count}; only the number of a square can be computed")
        return side

    return Key(key, "grid", to_field=read_side, to_value=lambda side: side**2)


def block_count(key: str) -> Entry:
    """Makes the entry of the number of blocks, in which files include unused ones."""
    return Keys(lambda values: {"depth": values[key]}, lambda config: {key: config.depth + config.unused_blocks})


def layer_scale(key: str) -> Key:
    """Makes the entry of the initial value of layer scales; 0 stands for no layer scales here."""

    def read(value: Any) -> float:
        if not isinstance(value, int | float) or not value:
            raise ValueError(f"{key} is {value!r}; only a number other than 0 can be computed")
        return float(value)

    return Key(key, "layer_scale", to_field=read, to_value=lambda scale: scale or 1.0)


def query_key_value_bias(key: str, biases: tuple[str, ...] = PROJECTIONS) -> Key:
    """Makes the entry of the biases of queries, keys and values; all other projections have some.

    Args:
        key: The key.
        biases: The projections with a bias where it is true.
    """
    return Key(
        key,
        "biases",
        to_field=lambda value: biases if value else ("output", "mlp"),
        to_value=lambda value: "query" in value,
    )


def rotary_positions(*types: str, **fields: Any) -> Entry:
    """Makes the entry of `rope_parameters`; in earlier files, `rope_theta` is beside it.

    Args:
        *types: Names of the rotation as `rope_type`; the first is written.
        **fields: Fields of the `VisionRope` besides its base.
    """

    def read(values: Values) -> dict[str, Any]:
        parameters = values.get("rope_parameters") or {}
        kind = parameters.get("rope_type", types[0])
        if kind not in types:
            raise ValueError(f"rope_parameters.rope_type is {kind!r}; only {types[0]!r} can be computed")
        base = parameters.get("rope_theta", values.get("rope_theta", VisionRope.base))
        return {"rope": VisionRope(float(base), **fields)}

    def write(config: VisionConfig) -> dict[str, Any]:
        base = config.rope.base if config.rope else VisionRope.base
        return {"rope_parameters": {"rope_type": types[0], "rope_theta": base}}

    return Keys(read, write)


PATCH = Key("patch_size", "patch", to_field=functools.partial(one_side, "patch_size"))
FFN = Key("intermediate_size", "ffn")
EPSILON = Key("layer_norm_eps", "norm_epsilon", to_field=float)
ACTIVATION = activation_key("hidden_act")
SIZES: Table = (
    Key("hidden_size", "width"),
    block_count("num_hidden_layers"),
    Key("num_attention_heads", "heads"),
    Key("num_channels", "channels"),
)
ENCODER_KEYS: Table = (*SIZES, FFN, EPSILON, ACTIVATION, patches())
"""Entries of most vision transformers; some replace one of these."""
