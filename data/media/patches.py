"""Pixels to the inputs of vision encoders and the targets of generators: resizing, patches and back.

Encoder formats (`data.samples.image_format`) patchify by it, data sets resize target images, and pages turn patches
back into pictures.
"""

import math

import numpy as np
from jaxtyping import Float, Float32, Int32, UInt8
from PIL import Image

from data.errors import DataError


def to_unit_range(image: UInt8[np.ndarray, "*shape"]) -> Float32[np.ndarray, "*shape"]:
    """Scales uint8 pixels to float32 in [-1, 1]."""
    return image.astype(np.float32) / np.float32(127.5) - np.float32(1)


def to_uint8(image: Float[np.ndarray, "*shape"]) -> UInt8[np.ndarray, "*shape"]:
    """Scales float pixels of [-1, 1] to uint8; values outside are clipped."""
    return np.rint((np.clip(image, -1, 1) + 1) * 127.5).astype(np.uint8)


def fitted_size(height: int, width: int, cell_size: int, max_cells: int) -> tuple[int, int]:
    """Size to which an image is resized so that it divides into cells: (height, width) in pixels.

    Both sides are rounded down to multiples of the cell's side; an image of too many cells is first scaled down, its
    aspect ratio kept.

    Args:
        height: Height in pixels.
        width: Width in pixels.
        cell_size: Side of a cell in pixels: patch x merge.
        max_cells: Largest number of cells, at least 1.
    """
    rows, columns = max(1, height // cell_size), max(1, width // cell_size)
    if rows * columns > max_cells:
        scale = math.sqrt(max_cells / (height * width))
        rows, columns = max(1, int(height * scale)), max(1, int(width * scale))
    # A side shorter than a cell is raised to one cell, after which the other side may exceed the limit.
    return min(rows, max_cells) * cell_size, min(columns, max_cells) * cell_size


def resize_to_fit(image: UInt8[np.ndarray, "h w c"], cell_size: int, max_cells: int) -> UInt8[np.ndarray, "_ _ c"]:
    """Resizes an image to `fitted_size` with antialiasing; an image of that size is returned unchanged."""
    height, width = fitted_size(image.shape[0], image.shape[1], cell_size, max_cells)
    if (height, width) == image.shape[:2]:
        return image
    return np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.LANCZOS))


def resize_to_square(image: UInt8[np.ndarray, "h w c"], side: int) -> Float32[np.ndarray, "{side} {side} c"]:
    """A generator's target in [-1, 1]: resized with antialiasing to a square, whatever its aspect ratio."""
    return to_unit_range(np.asarray(Image.fromarray(image).resize((side, side), Image.Resampling.BOX)))


def patchify(
    image: UInt8[np.ndarray, "h w c"], patch: int, merge: int
) -> tuple[Float32[np.ndarray, "p patch_values"], Int32[np.ndarray, "p 2"]]:
    """Divides an image into flattened patches such that the merge x merge patches of every cell are adjacent.

    Cells are in raster order, patches in raster order within their cell, pixels in raster order within their patch.

    Args:
        image: Both sides are multiples of patch x merge.
        patch: Side of a patch in pixels.
        merge: Side of a cell in patches.

    Returns:
        Patches [p, patch * patch * c] in [-1, 1], and the (row, column) of each.

    Raises:
        DataError: A side is no multiple of patch x merge.
    """
    height, width, channels = image.shape
    cell_size = patch * merge
    if height % cell_size or width % cell_size:
        raise DataError(
            f"an image of {height}x{width} pixels: sides must be multiples of {cell_size}; resize it (`resize_to_fit`)"
        )
    cell_rows, cell_columns = height // cell_size, width // cell_size

    def in_cell_order(grid: np.ndarray) -> np.ndarray:
        # [rows, columns, ...] -> [cell rows, cell columns, merge, merge, values]
        return grid.reshape(cell_rows, merge, cell_columns, merge, -1).transpose(0, 2, 1, 3, 4)

    rows, columns = np.indices((height // patch, width // patch), dtype=np.int32)
    positions = in_cell_order(np.stack([rows, columns], axis=-1)).reshape(-1, 2)
    blocks = image.reshape(height // patch, patch, width // patch, patch, channels).swapaxes(1, 2)
    patches = in_cell_order(blocks).reshape(-1, patch * patch * channels)
    return to_unit_range(patches), np.ascontiguousarray(positions)


def unpatchify(
    patches: Float[np.ndarray, "p patch_values"], positions: Int32[np.ndarray, "p 2"], patch: int
) -> UInt8[np.ndarray, "h w c"]:
    """The inverse of `patchify`, for patches in any order."""
    rows, columns = positions.max(axis=0) + 1
    grid = np.zeros((rows, columns, patches.shape[1]), np.uint8)
    grid[positions[:, 0], positions[:, 1]] = to_uint8(patches)
    blocks = grid.reshape(rows, columns, patch, patch, -1).swapaxes(1, 2)
    return blocks.reshape(rows * patch, columns * patch, -1)
