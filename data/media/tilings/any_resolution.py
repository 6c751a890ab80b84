"""LLaVA-NeXT's any-resolution tiles: the whole input as a square, then a padded grid of squares of it."""

import dataclasses
import math

import numpy as np
from jaxtyping import UInt8

from configs.common.checks import require_types
from data.errors import DataError
from data.media.resampling import cropped, require_at_least_one, require_resampling, resized, side_of_whole_cells
from data.media.tilings.tiling import Tile


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnyResolution:
    """The whole input as one tile, then the tiles of a grid (LLaVA-NeXT; LLaVA-OneVision, arXiv 2408.03326).

    The grid that shows most pixels of the input, of several the smallest, is filled as far as the input's aspect ratio
    allows; the rest is black, equally wide on both sides.

    Attributes:
        tile_size: Side of a tile in pixels. A remainder of less than a cell at its end is cut off, as SigLIP's
            convolution leaves it (384 pixels in patches of 14).
        grids: (rows, columns) of the grids in tiles; among equal ones, the first is taken.
        max_tiles: Grids of more tiles are not used. LLaVA-OneVision makes more, and interpolates their map down to as
            many cells as these tiles have, which is not done here.
        resampling: Name of the filter that resizes (`data.media.resampling`).
    """

    tile_size: int = 384
    grids: tuple[tuple[int, int], ...] = tuple((rows, columns) for rows in range(1, 7) for columns in range(1, 7))
    max_tiles: int = 9
    resampling: str = "bicubic"

    def __post_init__(self) -> None:
        require_types(self)
        require_resampling(self, self.resampling)
        require_at_least_one(self, "tile_size", "max_tiles")
        if not self.used_grids or any(min(grid) < 1 for grid in self.grids):
            raise DataError(
                f"AnyResolution.grids = {self.grids} has no grid of 1 to AnyResolution.max_tiles = {self.max_tiles} "
                "tiles, or one without tiles"
            )

    @property
    def used_grids(self) -> tuple[tuple[int, int], ...]:
        """The grids of at most `max_tiles`."""
        return tuple(grid for grid in self.grids if grid[0] * grid[1] <= self.max_tiles)

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """The (rows, columns) of tiles for an input of this size."""

        def shown_and_wasted(grid: tuple[int, int]) -> tuple[int, int]:
            rows, columns = (count * self.tile_size for count in grid)
            scale = min(columns / width, rows / height)
            shown = min(int(width * scale) * int(height * scale), width * height)
            return shown, shown - rows * columns

        return max(self.used_grids, key=shown_and_wasted)

    def image_sizes(self, height: int, width: int, cell_size: int) -> list[tuple[int, int]]:
        """The (height, width) of the whole input and of each tile in pixels, all the same.

        Raises:
            DataError: The side of a tile is less than `cell_size`.
        """
        side = side_of_whole_cells(self, "tile_size", self.tile_size, cell_size)
        rows, columns = self.grid(height, width)
        return [(side, side)] * (1 + rows * columns)

    def tiles(self, height: int, width: int, cell_size: int) -> list[Tile | None]:
        """None for the whole input, then the places of the tiles, with the cells that are kept when padding is cut."""
        grid = self.grid(height, width)
        cells = self.tile_size // cell_size
        kept_rows, kept_columns = self._kept_cells(height, width, grid[0] * cells, grid[1] * cells)

        def part(kept: tuple[int, int], number: int) -> tuple[int, int]:
            first, last = (min(max(bound - number * cells, 0), cells) for bound in kept)
            return first, max(first, last)

        return [
            None,
            *(
                Tile(row, column, part(kept_rows, row), part(kept_columns, column))
                for row in range(grid[0])
                for column in range(grid[1])
            ),
        ]

    @staticmethod
    def _kept_cells(height: int, width: int, rows: int, columns: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """First and last row and column of a map that show the input, as published: both sides lose as many."""
        if width / height > columns / rows:
            padding = (rows - int(round(height * (columns / width), 7))) // 2
            return (padding, rows - padding), (0, columns)
        padding = (columns - int(round(width * (rows / height), 7))) // 2
        return (0, rows), (padding, columns - padding)

    def cut_images(self, pixels: UInt8[np.ndarray, "h w 3"], cell_size: int) -> list[UInt8[np.ndarray, "_ _ 3"]]:
        """The whole input, then the tiles in raster order."""
        height, width = pixels.shape[:2]
        (shown, _), *_ = self.image_sizes(height, width, cell_size)
        rows, columns = self.grid(height, width)
        side = self.tile_size
        canvas = self._on_canvas(pixels, rows * side, columns * side)
        tiles = canvas.reshape(rows, side, columns, side, 3).swapaxes(1, 2).reshape(-1, side, side, 3)
        return [cropped(image, shown) for image in (resized(pixels, (side, side), self.resampling), *tiles)]

    def _on_canvas(self, pixels: np.ndarray, height: int, width: int) -> np.ndarray:
        """The input in the middle of a black image, as large as it fits."""
        height_scale, width_scale = height / pixels.shape[0], width / pixels.shape[1]
        if width_scale < height_scale:
            size = (min(math.ceil(pixels.shape[0] * width_scale), height), width)
        else:
            size = (height, min(math.ceil(pixels.shape[1] * height_scale), width))
        canvas = np.zeros((height, width, 3), np.uint8)
        top, left = (height - size[0]) // 2, (width - size[1]) // 2
        canvas[top : top + size[0], left : left + size[1]] = resized(pixels, size, self.resampling)
        return canvas
