"""Tilings: how an input image becomes images for a vision encoder, one at its own resolution or tiles of one size.

The sizes depend on the size of the input alone, so the number of backbone tokens is known from its header.
"""

import dataclasses
import functools
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from data.errors import DataError
from data.media.patches import fitted_size, resize_to_fit
from data.media.resampling import require_at_least_one


@dataclasses.dataclass(frozen=True)
class Tile:
    """Place of an encoder image in the input from which it was cut.

    Attributes:
        row, column: Row and column in the grid of tiles, from 0.
        rows, columns: First and last row or column of its cells, the last excluded, that shows the input, not padding.
    """

    row: int
    column: int
    rows: tuple[int, int]
    columns: tuple[int, int]


@runtime_checkable
class ImageTiling(Protocol):
    """A frozen dataclass that maps an input image to encoder images.

    `cell_size`, patch x merge, is the side in pixels of the area that becomes one backbone token.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def image_sizes(self, height: int, width: int, cell_size: int) -> list[tuple[int, int]]:
        """The (height, width) of each encoder image of an input of that size; multiples of `cell_size`."""
        ...

    def cut_images(self, pixels: UInt8[np.ndarray, "h w 3"], cell_size: int) -> list[UInt8[np.ndarray, "_ _ 3"]]:
        """The encoder images, of exactly these sizes."""
        ...


@runtime_checkable
class PlacedTiling(Protocol):
    """A tiling that says where its encoder images lie, so that their tokens can be laid out by their places."""

    def tiles(self, height: int, width: int, cell_size: int) -> list[Tile | None]:
        """The place of each encoder image of an input of that size; None for one of the whole input."""
        ...


@dataclasses.dataclass(frozen=True)
class NativeResolution:
    """One image of the input's own resolution and aspect ratio, as closely as whole cells and their limit allow.

    Attributes:
        max_cells: Largest number of cells, and so of backbone tokens; larger images are scaled down.
    """

    max_cells: int

    def __post_init__(self) -> None:
        require_at_least_one(self, "max_cells")

    def image_sizes(self, height: int, width: int, cell_size: int) -> list[tuple[int, int]]:
        """The size of the one image."""
        return [fitted_size(height, width, cell_size, self.max_cells)]

    def cut_images(self, pixels: UInt8[np.ndarray, "h w 3"], cell_size: int) -> list[UInt8[np.ndarray, "_ _ 3"]]:
        """The one image, resized with antialiasing if necessary."""
        return [resize_to_fit(pixels, cell_size, self.max_cells)]


@dataclasses.dataclass(frozen=True)
class DynamicTiling:
    """InternVL's dynamic tiling (arXiv 2404.16821, section 3.3): a grid of square tiles and a thumbnail.

    The input is resized to the grid whose aspect ratio is closest to its own, and cut into tiles in raster order.

    Attributes:
        tile_size: Side of a tile in pixels; a multiple of the cell size.
        min_tiles: Smallest number of tiles of a grid.
        max_tiles: Largest number of tiles of a grid.
        thumbnail: Whether the whole input, resized to one tile, follows a grid of more than one tile.
    """

    tile_size: int = 448
    min_tiles: int = 1
    max_tiles: int = 12
    thumbnail: bool = True

    def __post_init__(self) -> None:
        require_at_least_one(self, "tile_size", "min_tiles", "max_tiles")
        if self.min_tiles > self.max_tiles:
            raise DataError(
                f"DynamicTiling.min_tiles = {self.min_tiles} is above DynamicTiling.max_tiles = {self.max_tiles}; "
                "raise max_tiles or lower min_tiles"
            )

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """The (rows, columns) whose columns/rows is closest to width/height.

        Among equally close grids, the largest of which the input covers more than half, comparing numbers of pixels;
        the smallest if it covers more than half of none of the larger ones.
        """
        grids = _grids(self.min_tiles, self.max_tiles)
        distances = [abs(width / height - columns / rows) for rows, columns in grids]
        nearest = min(distances)
        smallest, *larger = [grid for grid, distance in zip(grids, distances, strict=True) if distance == nearest]
        covered = [grid for grid in larger if 2 * height * width > self.tile_size**2 * grid[0] * grid[1]]
        return covered[-1] if covered else smallest

    def image_sizes(self, height: int, width: int, cell_size: int) -> list[tuple[int, int]]:
        """The (height, width) of each tile and of the thumbnail in pixels, all the same.

        Raises:
            DataError: The side of a tile is no multiple of `cell_size`.
        """
        if self.tile_size % cell_size:
            raise DataError(
                f"DynamicTiling.tile_size = {self.tile_size} must be a multiple of patch x merge = {cell_size}"
            )
        rows, columns = self.grid(height, width)
        return [(self.tile_size, self.tile_size)] * (rows * columns + (self.thumbnail and rows * columns > 1))

    def cut_images(self, pixels: UInt8[np.ndarray, "h w 3"], cell_size: int) -> list[UInt8[np.ndarray, "_ _ 3"]]:
        """The tiles, then the thumbnail; resized by cubic interpolation with antialiasing, as published."""
        height, width = pixels.shape[:2]
        count = len(self.image_sizes(height, width, cell_size))
        rows, columns = self.grid(height, width)
        image = Image.fromarray(pixels)
        side = self.tile_size
        resized = self._resize_to_grid(image, rows, columns)  # [rows * side, columns * side, 3]
        tiles = resized.reshape(rows, side, columns, side, 3).swapaxes(1, 2).reshape(-1, side, side, 3)
        images = [np.ascontiguousarray(tile) for tile in tiles]
        return images if len(images) == count else [*images, self._resize_to_grid(image, 1, 1)]

    def _resize_to_grid(self, image: Image.Image, rows: int, columns: int) -> np.ndarray:
        size = (columns * self.tile_size, rows * self.tile_size)
        return np.asarray(image.resize(size, Image.Resampling.BICUBIC))


@functools.cache
def _grids(min_tiles: int, max_tiles: int) -> list[tuple[int, int]]:
    """Every (rows, columns) of that many tiles, in order of their number of tiles."""
    sides = range(1, max_tiles + 1)
    grids = [(rows, columns) for columns in sides for rows in sides if min_tiles <= rows * columns <= max_tiles]
    return sorted(grids, key=lambda grid: grid[0] * grid[1])
