"""SigLIP 2's size rule: as many patches as a limit allows, whatever the size of an image."""

import dataclasses
import math

import numpy as np
from jaxtyping import UInt8

from configs.common.checks import require_types
from data.media.resampling import require_at_least_one, require_resampling, resized

_LARGEST_SCALE, _PRECISION = 100.0, 1e-5  # of the published search


@dataclasses.dataclass(frozen=True)
class PatchCount:
    """One image of about the input's aspect ratio, scaled to the most cells that a limit allows (arXiv 2502.14786).

    Attributes:
        max_cells: Largest number of cells.
        resampling: Name of the filter that resizes (`data.media.resampling`).
    """

    max_cells: int = 256
    resampling: str = "bilinear"

    def __post_init__(self) -> None:
        require_types(self)
        require_resampling(self, self.resampling)
        require_at_least_one(self, "max_cells")

    def image_sizes(self, height: int, width: int, cell_size: int) -> list[tuple[int, int]]:
        """The size of the one image; sides are rounded up to whole cells, and the scale is found by bisection."""

        def cells(scale: float) -> tuple[int, int]:
            return max(1, math.ceil(height * scale / cell_size)), max(1, math.ceil(width * scale / cell_size))

        least, largest = _PRECISION / 10, _LARGEST_SCALE
        while largest - least >= _PRECISION:
            scale = (least + largest) / 2
            rows, columns = cells(scale)
            least, largest = (scale, largest) if rows * columns <= self.max_cells else (least, scale)
        rows, columns = cells(least)
        return [(rows * cell_size, columns * cell_size)]

    def cut_images(self, pixels: UInt8[np.ndarray, "h w 3"], cell_size: int) -> list[UInt8[np.ndarray, "_ _ 3"]]:
        """The one image."""
        height, width = pixels.shape[:2]
        (size,) = self.image_sizes(height, width, cell_size)
        return [resized(pixels, size, self.resampling)]
