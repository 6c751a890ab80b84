"""The tiling of images and the layout of their tokens, read from a published processor's configuration.

In a gin file:

conversations.Conversations.tiling = @published_processor.published_tiling()
conversations.Conversations.images = @published_processor.published_layout()
published_processor.published_tiling.folder = 'checkpoint'
published_processor.published_layout.folder = 'checkpoint'
"""

import json
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from data.errors import DataError
from data.media.tilings.any_resolution import AnyResolution
from data.media.tilings.canvas_tiling import CanvasTiling
from data.media.tilings.longest_edge import LongestEdge
from data.media.tilings.pan_and_scan import PanAndScan
from data.media.tilings.patch_count import PatchCount
from data.media.tilings.pixel_range import PixelRange
from data.media.tilings.square_image import SquareImage
from data.media.tilings.tiling import DynamicTiling, ImageTiling
from data.text.image_layout import ImageLayout

FILES = ("processor_config.json", "preprocessor_config.json")
SECTION = "image_processor"
TYPE = "image_processor_type"
SUFFIXES = ("Fast", "Pil")
"""Ends of the names of equal processors of other programs."""

RESAMPLINGS = {1: "lanczos", 2: "bilinear", 3: "bicubic"}
"""Pillow's numbers of filters."""

GEMMA3_LAYOUT = ImageLayout(
    delimiters="tiles",
    before="\n\n",
    after="\n\n",
    original="Here is the original image ",
    crops=" and here are some crops to help you see better ",
    separator=" ",
)
LAYOUTS = {
    "Gemma3ImageProcessor": GEMMA3_LAYOUT,
    "Llama4ImageProcessor": ImageLayout(
        tile_break="<|tile_x_separator|>", tile_row_end="<|tile_y_separator|>", whole="<|image|>"
    ),
    "LlavaNextImageProcessor": ImageLayout(joined=True),
    "LlavaOnevisionImageProcessor": ImageLayout(joined=True),
    "PixtralImageProcessor": ImageLayout(row_break="[IMG_BREAK]"),
}
"""Layouts of the models of a processor; others have the default."""

Values = Mapping[str, Any]


def published_tiling(folder: str | os.PathLike[str]) -> ImageTiling:
    """The tiling that makes the encoder images of a published processor.

    Args:
        folder: The folder with preprocessor_config.json or processor_config.json.

    Raises:
        DataError: There is no such file, its kind of processor is not known, or it has a value that no tiling has.
    """
    where, kind, values = _read(folder)
    if kind not in TILINGS:
        raise DataError(f"{where}: {TYPE} is {kind!r}; choose a tiling yourself, or one of {', '.join(TILINGS)}")
    try:
        return TILINGS[kind](values)
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{where}: a value of {kind} is missing or not of its kind: {error!r}") from error
    except DataError as error:
        raise DataError(f"{where}: {error}") from error


def published_layout(folder: str | os.PathLike[str]) -> ImageLayout:
    """The layout of the tokens of images for a published processor; arguments and errors as of `published_tiling`."""
    where, kind, _ = _read(folder)
    if kind not in TILINGS:
        raise DataError(f"{where}: {TYPE} is {kind!r}; give an ImageLayout yourself, or one of {', '.join(TILINGS)}")
    return LAYOUTS.get(kind, ImageLayout())


def _read(folder: str | os.PathLike[str]) -> tuple[str, str, Values]:
    """The file of the configuration of images, the type of its processor, and its values."""
    for path in (pathlib.Path(folder) / file for file in FILES):
        if not path.is_file():
            continue
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            values = values.get(SECTION, values) if path.name == FILES[0] else values
            kind = values.get(TYPE) or values.get("feature_extractor_type", "")
        except (OSError, ValueError, AttributeError, RecursionError) as error:
            raise DataError(f"{path}: {error}") from error
        if kind:
            for suffix in SUFFIXES:
                kind = str(kind).removesuffix(suffix)
            return str(path), kind, {key: value for key, value in values.items() if value is not None}
    raise DataError(f"{os.fspath(folder)} has no {' or '.join(FILES)} that says its {TYPE}")


def _resampling(values: Values) -> str:
    number = values.get("resample", 3)
    if number not in RESAMPLINGS:
        raise DataError(f"resample is {number}; choose one of {RESAMPLINGS}")
    return RESAMPLINGS[number]


def _side(size: Any, key: str) -> int:
    """The side of a square that is written as a number, a shorter side, or equal height and width."""
    sides = {size} if isinstance(size, int) else {size.get(name) for name in ("height", "width", "shortest_edge")}
    sides -= {None}
    if len(sides) != 1:
        raise DataError(f"{key} is {size}; only squares can be made")
    return int(sides.pop())


def _square(values: Values) -> ImageTiling:
    """CLIP, SigLIP and others that make one square."""
    side, resampling = _side(values["size"], "size"), _resampling(values)
    if values.get("do_pad"):
        padding = tuple(int(level * 255) for level in values["image_mean"])
        red, green, blue = padding
        return SquareImage(side=side, fit="pad", resampling=resampling, padding=(red, green, blue))
    if not values.get("do_center_crop"):
        if "height" not in values["size"]:
            raise DataError(f"size is {values['size']} and do_center_crop is not set; images would not be squares")
        return SquareImage(side=side, resampling=resampling)
    if _side(values["crop_size"], "crop_size") != side:
        raise DataError(
            f"crop_size is {values['crop_size']} and size {values['size']}; only the whole middle can be cropped"
        )
    return SquareImage(side=side, fit="crop", resampling=resampling)


def _gemma3(values: Values) -> ImageTiling:
    side, resampling = _side(values["size"], "size"), _resampling(values)
    if not values.get("do_pan_and_scan"):
        return SquareImage(side=side, resampling=resampling)
    return PanAndScan(
        side=side,
        min_crop=values["pan_and_scan_min_crop_size"],
        max_crops=values["pan_and_scan_max_num_crops"],
        min_ratio=float(values["pan_and_scan_min_ratio_to_activate"]),
        resampling=resampling,
    )


def _internvl(values: Values) -> ImageTiling:
    side = _side(values["size"], "size")
    if not values.get("crop_to_patches"):
        return SquareImage(side=side, resampling=_resampling(values))
    if _resampling(values) != "bicubic":
        raise DataError(f"resample is {values['resample']}; DynamicTiling resizes by cubic interpolation, 3")
    return DynamicTiling(side, values.get("min_patches", 1), values.get("max_patches", 12))


def _any_resolution(values: Values) -> ImageTiling:
    side = _side(values["size"], "size")
    points = [tuple(point) for point in values["image_grid_pinpoints"]]
    grids = tuple((rows // side, columns // side) for rows, columns in points)
    if [(rows * side, columns * side) for rows, columns in grids] != points:
        raise DataError(f"image_grid_pinpoints are no multiples of size, {side}")
    limit = {} if values[TYPE].startswith("LlavaOnevision") else {"max_tiles": max(a * b for a, b in grids)}
    return AnyResolution(tile_size=side, grids=grids, resampling=_resampling(values), **limit)


def _pixtral(values: Values) -> ImageTiling:
    return LongestEdge(values["size"]["longest_edge"], _resampling(values))


def _qwen(values: Values) -> ImageTiling:
    size = values.get("size", {})
    least = values.get("min_pixels", size.get("shortest_edge"))
    return PixelRange(least, values.get("max_pixels", size.get("longest_edge")))


def _siglip2(values: Values) -> ImageTiling:
    return PatchCount(values["max_num_patches"], _resampling(values))


def _llama4(values: Values) -> ImageTiling:
    return CanvasTiling(
        tile_size=_side(values["size"], "size"),
        max_tiles=values["max_patches"],
        enlarge=bool(values.get("resize_to_max_canvas")),
        resampling=_resampling(values),
    )


TILINGS: dict[str, Callable[[Values], ImageTiling]] = {
    "BitImageProcessor": _square,
    "CLIPImageProcessor": _square,
    "DINOv3ViTImageProcessor": _square,
    "GotOcr2ImageProcessor": _internvl,
    "Gemma3ImageProcessor": _gemma3,
    "Llama4ImageProcessor": _llama4,
    "LlavaImageProcessor": _square,
    "LlavaNextImageProcessor": _any_resolution,
    "LlavaOnevisionImageProcessor": _any_resolution,
    "PixtralImageProcessor": _pixtral,
    "Qwen2VLImageProcessor": _qwen,
    "Siglip2ImageProcessor": _siglip2,
    "SiglipImageProcessor": _square,
    "ViTImageProcessor": _square,
}
"""By the type of a processor, the function that makes a tiling of its values."""
