"""Resizing of pixels by one of the filters that published processors use, with antialiasing.

The tilings in `tilings/` resize by it.
"""

from typing import Literal, get_args

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from data.errors import DataError

Resampling = Literal["bilinear", "bicubic", "lanczos"]
RESAMPLINGS: tuple[Resampling, ...] = get_args(Resampling)


def resized(pixels: UInt8[np.ndarray, "h w 3"], size: tuple[int, int], resampling: str) -> UInt8[np.ndarray, "_ _ 3"]:
    """The image at another (height, width), or itself if it has this size already."""
    if size == pixels.shape[:2]:
        return pixels
    image = Image.fromarray(np.ascontiguousarray(pixels))
    return np.asarray(image.resize((size[1], size[0]), Image.Resampling[resampling.upper()]))


def require_resampling(owner: object, value: str) -> None:
    """Raises DataError if a field `resampling` names no filter."""
    if value not in RESAMPLINGS:
        raise DataError(f"{type(owner).__name__}.resampling is {value!r}; choose one of {', '.join(RESAMPLINGS)}")


def require_at_least_one(owner: object, *fields: str) -> None:
    """Raises DataError, naming the field, if one of these fields is below 1."""
    for field in fields:
        value = getattr(owner, field)
        if value < 1:
            raise DataError(f"{type(owner).__name__}.{field} is {value}; it must be at least 1")


def require_tile_of_cells(owner: object, field: str, side: int, cell_size: int) -> None:
    """Raises DataError if the side of an encoder image is not a whole number of cells."""
    if side % cell_size:
        raise DataError(
            f"{type(owner).__name__}.{field} = {side} must be a multiple of patch x merge = {cell_size}; change one"
        )


def side_of_whole_cells(owner: object, field: str, side: int, cell_size: int) -> int:
    """The side of an encoder image, rounded down to whole cells, in pixels; DataError if it is less than a cell."""
    if side < cell_size:
        raise DataError(f"{type(owner).__name__}.{field} = {side} is less than patch x merge = {cell_size}; raise it")
    return side // cell_size * cell_size


def cropped(pixels: UInt8[np.ndarray, "h w 3"], side: int) -> UInt8[np.ndarray, "{side} {side} 3"]:
    """The square at the beginning of an image."""
    return np.ascontiguousarray(pixels[:side, :side])
