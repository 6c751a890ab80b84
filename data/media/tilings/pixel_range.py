"""The size rule of Qwen2-VL and its successors: whole cells, and a number of pixels between two limits."""

import dataclasses
import math

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from data.errors import DataError


@dataclasses.dataclass(frozen=True)
class PixelRange:
    """One image of the input's aspect ratio with a limited number of pixels (Qwen2-VL, arXiv 2409.12191, section 2.1).

    Sides are rounded to the nearest whole cells; an image of too many or too few pixels is scaled down or up. It is
    `smart_resize` of transformers, which refuses images longer than 200 times their height; here they are scaled like
    others.

    Attributes:
        min_pixels: Least number of pixels.
        max_pixels: Largest number of pixels: the largest number of backbone tokens times the pixels of a cell,
            (patch x merge)². An image so narrow that a side is raised to one cell may exceed it.
    """

    min_pixels: int = 56 * 56
    max_pixels: int = 1280 * 28 * 28

    def __post_init__(self) -> None:
        if not 1 <= self.min_pixels <= self.max_pixels:
            raise DataError(
                f"PixelRange.min_pixels = {self.min_pixels} and PixelRange.max_pixels = {self.max_pixels}; they must "
                "be at least 1 and ascend"
            )

    def image_sizes(self, height: int, width: int, cell_size: int) -> list[tuple[int, int]]:
        """The size of the one image."""
        rows, columns = round(height / cell_size), round(width / cell_size)
        pixels = rows * columns * cell_size**2
        if pixels > self.max_pixels:
            scale = math.sqrt(height * width / self.max_pixels)
            rows, columns = (max(1, math.floor(side / scale / cell_size)) for side in (height, width))
        elif pixels < self.min_pixels:
            scale = math.sqrt(self.min_pixels / (height * width))
            rows, columns = (math.ceil(side * scale / cell_size) for side in (height, width))
        return [(max(1, rows) * cell_size, max(1, columns) * cell_size)]

    def cut_images(self, pixels: UInt8[np.ndarray, "h w 3"], cell_size: int) -> list[UInt8[np.ndarray, "_ _ 3"]]:
        """The one image, resized by cubic interpolation with antialiasing, as published."""
        ((height, width),) = self.image_sizes(pixels.shape[0], pixels.shape[1], cell_size)
        if (height, width) == pixels.shape[:2]:
            return [pixels]
        return [np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC))]
