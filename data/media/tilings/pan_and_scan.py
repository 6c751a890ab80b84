"""Gemma 3's pan and scan: a square of the whole image, then squares of crops along its longer side."""

import dataclasses
import math

import numpy as np
from jaxtyping import UInt8

from configs.common.checks import require_types
from data.errors import DataError
from data.media.resampling import require_resampling, require_tile_of_cells, resized


@dataclasses.dataclass(frozen=True, kw_only=True)
class PanAndScan:
    """The whole image, then crops along its longer side, each resized to one square (arXiv 2503.19786, section 2.1).

    Attributes:
        side: Side of the squares in pixels; a multiple of the cell size.
        min_crop: Smallest side of a crop in pixels; an image whose crops would be smaller is not cut.
        max_crops: Largest number of crops.
        min_ratio: Smallest ratio of the longer side to the shorter one at which an image is cut.
        resampling: Name of the filter that resizes (`data.media.resampling`).
    """

    side: int = 896
    min_crop: int = 256
    max_crops: int = 4
    min_ratio: float = 1.2
    resampling: str = "bilinear"

    def __post_init__(self) -> None:
        require_types(self)
        require_resampling(self, self.resampling)
        for name, least in (("side", 1), ("min_crop", 1), ("max_crops", 1), ("min_ratio", 1.0)):
            if getattr(self, name) < least:
                raise DataError(f"PanAndScan.{name} is {getattr(self, name)}; it must be at least {least}")

    def crops(self, height: int, width: int) -> list[tuple[slice, slice]]:
        """Rows and columns of the crops of an image of this size, in pixels; empty if it is not cut."""
        longer, shorter = max(height, width), min(height, width)
        if longer / shorter < self.min_ratio:
            return []
        count = min(longer // self.min_crop, math.floor(longer / shorter + 0.5))
        count = min(max(2, count), self.max_crops)
        length = -(-longer // count)
        if min(length, shorter) < self.min_crop:
            return []
        parts = [slice(start, min(start + length, longer)) for start in range(0, count * length, length)]
        whole = slice(0, shorter)
        return [(whole, part) if width >= height else (part, whole) for part in parts]

    def image_sizes(self, height: int, width: int, cell_size: int) -> list[tuple[int, int]]:
        """The (height, width) of the whole image and of each crop, all the same.

        Raises:
            DataError: The side is no multiple of `cell_size`.
        """
        require_tile_of_cells(self, "side", self.side, cell_size)
        return [(self.side, self.side)] * (1 + len(self.crops(height, width)))

    def cut_images(self, pixels: UInt8[np.ndarray, "h w 3"], cell_size: int) -> list[UInt8[np.ndarray, "_ _ 3"]]:
        """The whole image, then its crops."""
        height, width = pixels.shape[:2]
        size, *_ = self.image_sizes(height, width, cell_size)
        parts = [pixels, *(pixels[part] for part in self.crops(height, width))]
        return [resized(part, size, self.resampling) for part in parts]
