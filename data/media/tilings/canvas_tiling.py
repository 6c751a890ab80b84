"""Llama 4's tiles: the input in the corner of a canvas of squares, enlarged no more than to one square."""

import dataclasses
import math

import numpy as np
from jaxtyping import UInt8

from configs.common.checks import require_types
from data.media.resampling import require_at_least_one, require_resampling, require_tile_of_cells, resized
from data.media.tilings.tiling import Tile


@dataclasses.dataclass(frozen=True, kw_only=True)
class CanvasTiling:
    """The tiles of a canvas, then the whole input as one tile if there are several.

    The canvas, of at most `max_tiles` tiles, is the one that enlarges the input least, or else shrinks it least; of
    several the smallest. The input keeps its aspect ratio, and black fills the canvas on the right and below.

    Attributes:
        tile_size: Side of a tile in pixels; a multiple of the cell size.
        max_tiles: Largest number of tiles of a canvas.
        enlarge: Whether inputs fill the largest canvas that they can, instead of the smallest.
        resampling: Name of the filter that resizes (`data.media.resampling`).
    """

    tile_size: int = 336
    max_tiles: int = 16
    enlarge: bool = False
    resampling: str = "bilinear"

    def __post_init__(self) -> None:
        require_types(self)
        require_resampling(self, self.resampling)
        require_at_least_one(self, "tile_size", "max_tiles")

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """The (rows, columns) of tiles for an input of this size."""
        sides = range(1, self.max_tiles + 1)
        grids = [(rows, columns) for rows in sides for columns in sides if rows * columns <= self.max_tiles]
        # Scales are compared in float32, as published.
        scales = [
            min(
                np.float32(rows * self.tile_size) / np.float32(height),
                np.float32(columns * self.tile_size) / np.float32(width),
            )
            for rows, columns in grids
        ]
        enlarging = [scale for scale in scales if scale >= 1]
        chosen = (max if self.enlarge else min)(enlarging) if enlarging else max(scales)
        fitting = [grid for grid, scale in zip(grids, scales, strict=True) if scale == chosen]
        return min(fitting, key=lambda grid: grid[0] * grid[1])

    def image_sizes(self, height: int, width: int, cell_size: int) -> list[tuple[int, int]]:
        """The (height, width) of each tile and of the whole input in pixels, all the same.

        Raises:
            DataError: The side of a tile is no multiple of `cell_size`.
        """
        require_tile_of_cells(self, "tile_size", self.tile_size, cell_size)
        return [(self.tile_size, self.tile_size)] * len(self.tiles(height, width, cell_size))

    def tiles(self, height: int, width: int, cell_size: int) -> list[Tile | None]:
        """The places of the tiles, of which padding is kept, then None for the whole input."""
        rows, columns = self.grid(height, width)
        whole = (0, self.tile_size // cell_size)
        places = [Tile(row, column, whole, whole) for row in range(rows) for column in range(columns)]
        return [*places, None] if len(places) > 1 else [None]

    def cut_images(self, pixels: UInt8[np.ndarray, "h w 3"], cell_size: int) -> list[UInt8[np.ndarray, "_ _ 3"]]:
        """The tiles in raster order, then the whole input."""
        height, width = pixels.shape[:2]
        whole, *_ = self.image_sizes(height, width, cell_size)
        rows, columns = self.grid(height, width)
        side = self.tile_size
        canvas = np.zeros((rows * side, columns * side, 3), np.uint8)
        size = self._fitted(height, width, rows * side, columns * side)
        canvas[: size[0], : size[1]] = resized(pixels, size, self.resampling)
        if rows * columns == 1:
            return [canvas]
        tiles = canvas.reshape(rows, side, columns, side, 3).swapaxes(1, 2).reshape(-1, side, side, 3)
        return [*(np.ascontiguousarray(tile) for tile in tiles), resized(pixels, whole, self.resampling)]

    def _fitted(self, height: int, width: int, canvas_height: int, canvas_width: int) -> tuple[int, int]:
        """The (height, width) of the input within a canvas."""
        if not self.enlarge:
            canvas_height = min(max(height, self.tile_size), canvas_height)
            canvas_width = min(max(width, self.tile_size), canvas_width)
        height_scale, width_scale = canvas_height / height, canvas_width / width
        if width_scale < height_scale:
            return max(1, min(math.floor(height * width_scale), canvas_height)), canvas_width
        return canvas_height, max(1, min(math.floor(width * height_scale), canvas_width))
