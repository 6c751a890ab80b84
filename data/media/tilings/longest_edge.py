"""Pixtral's size rule: an image's own resolution up to a longest edge, rounded up to whole cells."""

import dataclasses
import math

import numpy as np
from jaxtyping import UInt8

from configs.common.checks import require_types
from data.media.resampling import require_at_least_one, require_resampling, resized


@dataclasses.dataclass(frozen=True)
class LongestEdge:
    """One image of the input's aspect ratio whose longer side is limited (Pixtral, arXiv 2410.07073).

    Attributes:
        longest_edge: Largest side in pixels before sides are rounded up to whole cells.
        resampling: Name of the filter that resizes (`data.media.resampling`).
    """

    longest_edge: int = 1024
    resampling: str = "bicubic"

    def __post_init__(self) -> None:
        require_types(self)
        require_resampling(self, self.resampling)
        require_at_least_one(self, "longest_edge")

    def image_sizes(self, height: int, width: int, cell_size: int) -> list[tuple[int, int]]:
        """The size of the one image."""
        scale = max(height / self.longest_edge, width / self.longest_edge)
        if scale > 1:
            height, width = (max(1, math.floor(side / scale)) for side in (height, width))
        return [(-(-height // cell_size) * cell_size, -(-width // cell_size) * cell_size)]

    def cut_images(self, pixels: UInt8[np.ndarray, "h w 3"], cell_size: int) -> list[UInt8[np.ndarray, "_ _ 3"]]:
        """The one image."""
        height, width = pixels.shape[:2]
        (size,) = self.image_sizes(height, width, cell_size)
        return [resized(pixels, size, self.resampling)]
