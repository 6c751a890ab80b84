"""How a picture becomes images for a vision transformer: one at its own resolution, or tiles of one size.

The sizes follow from the picture's size alone, so that its tokens are known from the header.
"""

import dataclasses
import functools
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from data.errors import DataError
from data.media.patches import fitted_size, resize_to_fit


@runtime_checkable
class ImageTiling(Protocol):
    """A rule that makes images of a picture; `unit`, patch x merge, is the side in pixels of one backbone token."""

    def image_sizes(self, height: int, width: int, unit: int) -> list[tuple[int, int]]:
        """(height, width) of each image, multiples of `unit`, of a picture of that size."""
        ...

    def cut_images(self, pixels: UInt8[np.ndarray, "h w 3"], unit: int) -> list[UInt8[np.ndarray, "_ _ 3"]]:
        """The images, of exactly these sizes."""
        ...


@dataclasses.dataclass(frozen=True)
class NativeResolution:
    """One image of the picture's own resolution and aspect, as close as multiples of `unit` and a cap allow.

    Attributes:
        most_cells: Cap on its cells of unit x unit pixels, its backbone tokens; a larger picture is shrunk to it.
    """

    max_cells: int

    def __post_init__(self) -> None:
        _require_positive(self)

    def image_sizes(self, height: int, width: int, unit: int) -> list[tuple[int, int]]:
        """One size."""
        return [fitted_size(height, width, unit, self.max_cells)]

    def cut_images(self, pixels: UInt8[np.ndarray, "h w 3"], unit: int) -> list[UInt8[np.ndarray, "_ _ 3"]]:
        """One image, resized with antialiasing where it must be."""
        return [resize_to_fit(pixels, unit, self.max_cells)]


@dataclasses.dataclass(frozen=True)
class DynamicTiling:
    """InternVL's dynamic tiling (arXiv 2404.16821, section 3.3): a grid of square tiles, and the whole as a thumbnail.

    The picture is resized to the grid whose aspect is closest to its own, and cut in raster order.

    Attributes:
        tile: Side of a tile in pixels; a multiple of `unit`.
        least, most: Tiles of the grid.
        thumbnail: Whether the whole picture, resized to one tile, follows where there is more than one.
    """

    tile_size: int = 448
    min_tiles: int = 1
    max_tiles: int = 12
    thumbnail: bool = True

    def __post_init__(self) -> None:
        _require_positive(self)
        if self.min_tiles > self.max_tiles:
            raise DataError(
                f"Tiles.least = {self.min_tiles} is above Tiles.most = {self.max_tiles}; raise most or lower least"
            )

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """(rows, columns) whose columns/rows is closest to width/height.

        Of grids that are equally close, the largest one of which the picture covers more than half, the picture's
        pixels against the grid's; the smallest where it covers half of none of the larger ones.
        """
        grids = _grids(self.min_tiles, self.max_tiles)
        distances = [abs(width / height - columns / rows) for rows, columns in grids]
        nearest = min(distances)
        smallest, *larger = [grid for grid, distance in zip(grids, distances, strict=True) if distance == nearest]
        covered = [grid for grid in larger if 2 * height * width > self.tile_size**2 * grid[0] * grid[1]]
        return covered[-1] if covered else smallest

    def image_sizes(self, height: int, width: int, unit: int) -> list[tuple[int, int]]:
        """The same size once a tile; raises DataError where a tile's side is no multiple of `unit`."""
        if self.tile_size % unit:
            raise DataError(f"Tiles.tile = {self.tile_size} must be a multiple of patch x merge = {unit}")
        rows, columns = self.grid(height, width)
        return [(self.tile_size, self.tile_size)] * (rows * columns + (self.thumbnail and rows * columns > 1))

    def cut_images(self, pixels: UInt8[np.ndarray, "h w 3"], unit: int) -> list[UInt8[np.ndarray, "_ _ 3"]]:
        """The tiles, then the thumbnail; resized by cubic interpolation with antialiasing, as published."""
        height, width = pixels.shape[:2]
        count = len(self.image_sizes(height, width, unit))
        rows, columns = self.grid(height, width)
        picture = Image.fromarray(pixels)
        whole = self._resized(picture, rows, columns)
        tiles = (
            whole.reshape(rows, self.tile_size, columns, self.tile_size, 3)
            .swapaxes(1, 2)
            .reshape(-1, self.tile_size, self.tile_size, 3)
        )
        images = [np.ascontiguousarray(tile) for tile in tiles]
        return images if len(images) == count else [*images, self._resized(picture, 1, 1)]

    def _resized(self, picture: Image.Image, rows: int, columns: int) -> np.ndarray:
        size = (columns * self.tile_size, rows * self.tile_size)
        return np.asarray(picture.resize(size, Image.Resampling.BICUBIC))


@functools.cache
def _grids(least: int, most: int) -> list[tuple[int, int]]:
    """Every (rows, columns) of `least` to `most` tiles, those of fewer tiles first."""
    sides = range(1, most + 1)
    grids = [(rows, columns) for columns in sides for rows in sides if least <= rows * columns <= most]
    return sorted(grids, key=lambda grid: grid[0] * grid[1])


def _require_positive(tiling: NativeResolution | DynamicTiling) -> None:
    for field in dataclasses.fields(tiling):
        value = getattr(tiling, field.name)
        if field.type is int and value < 1:
            raise DataError(f"{type(tiling).__name__}.{field.name} is {value}; it must be at least 1")
