"""Images on the host: files to pixels, pixels to patches, and back."""

import math
import os

import numpy as np
from PIL import Image

from data.errors import BadSampleError, DataError


def load_image(path: str | os.PathLike[str]) -> np.ndarray:
    """Reads an image file as RGB, uint8[height, width, 3].

    Raises:
        BadSampleError: The file is missing, truncated or no image.
    """
    try:
        with Image.open(path) as image:
            return np.asarray(image.convert("RGB"))
    # Pillow's decoders let nearly anything through for a damaged file: OSError, SyntaxError, ValueError, struct.error.
    except Exception as error:
        raise BadSampleError(path, f"{type(error).__name__}: {error}") from error


def save_image(path: str | os.PathLike[str], image: np.ndarray) -> None:
    """Writes float pixels [height, width, 3] of [-1, 1] to a file; the suffix names the format."""
    Image.fromarray(to_uint8(image)).save(path)


def to_unit_range(image: np.ndarray) -> np.ndarray:
    """Scales uint8 pixels to float32 in [-1, 1]."""
    return image.astype(np.float32) / np.float32(127.5) - np.float32(1)


def to_uint8(image: np.ndarray) -> np.ndarray:
    """Scales float pixels of [-1, 1] to uint8, clipping what lies outside."""
    return np.rint((np.clip(image, -1, 1) + 1) * 127.5).astype(np.uint8)


def fitted_size(height: int, width: int, unit: int, most: int) -> tuple[int, int]:
    """Size an image is resized to: both sides multiples of `unit`, at most `most` cells of unit x unit.

    The next multiples below, so that nothing is invented; an image over the cap is shrunk first, its aspect kept.

    Args:
        height, width: Size in pixels.
        unit: Side of a cell: patch x merge.
        most: Cap on the number of cells, at least 1.
    """
    rows, columns = max(1, height // unit), max(1, width // unit)
    if rows * columns > most:
        shrink = math.sqrt(most / (height * width))
        rows, columns = max(1, int(height * shrink)), max(1, int(width * shrink))
    # A strip thinner than a cell is raised to one cell, which may take the other side over the cap.
    return min(rows, most) * unit, min(columns, most) * unit


def resize_to_fit(image: np.ndarray, unit: int, most: int) -> np.ndarray:
    """Resizes uint8 pixels to `fitted_size`, antialiased; an image of a fitting size is returned as it is."""
    height, width = fitted_size(*image.shape[:2], unit, most)
    if (height, width) == image.shape[:2]:
        return image
    return np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.LANCZOS))


def resize_to_square(image: np.ndarray, side: int) -> np.ndarray:
    """The generator's target: uint8 pixels to float32[side, side, 3] in [-1, 1], antialiased, aspect not kept."""
    return to_unit_range(np.asarray(Image.fromarray(image).resize((side, side), Image.Resampling.BOX)))


def patchify(image: np.ndarray, patch: int, merge: int) -> tuple[np.ndarray, np.ndarray]:
    """Cuts an image into flattened patches, the merge x merge patches of every cell adjacent.

    Cells in raster order, patches in raster order within a cell, pixels in raster order within a patch.

    Args:
        image: uint8[height, width, c]; both sides multiples of patch x merge.
        patch: Side of a patch in pixels.
        merge: Side of a cell in patches.

    Returns:
        patches: float32[p, patch * patch * c] in [-1, 1].
        positions: int32[p, 2], (row, column) of each patch.

    Raises:
        DataError: A side that is no multiple.
    """
    height, width, channels = image.shape
    unit = patch * merge
    if height % unit or width % unit:
        raise DataError(f"image of {height}x{width} pixels: sides must be multiples of {unit}; use `fit` first")
    cells = (height // unit, width // unit)

    def cell_order(grid: np.ndarray) -> np.ndarray:
        return grid.reshape(cells[0], merge, cells[1], merge, -1).transpose(0, 2, 1, 3, 4)

    rows, columns = np.indices((height // patch, width // patch), dtype=np.int32)
    positions = cell_order(np.stack([rows, columns], axis=-1)).reshape(-1, 2)
    blocks = image.reshape(height // patch, patch, width // patch, patch, channels).swapaxes(1, 2)
    patches = cell_order(blocks).reshape(-1, patch * patch * channels)
    return to_unit_range(patches), np.ascontiguousarray(positions)


def unpatchify(patches: np.ndarray, positions: np.ndarray, patch: int) -> np.ndarray:
    """The inverse of `patchify`: uint8[height, width, c] from patches and their positions, in any order."""
    rows, columns = positions.max(axis=0) + 1
    grid = np.zeros((rows, columns, patches.shape[1]), np.uint8)
    grid[positions[:, 0], positions[:, 1]] = to_uint8(patches)
    blocks = grid.reshape(rows, columns, patch, patch, -1).swapaxes(1, 2)
    return blocks.reshape(rows * patch, columns * patch, -1)
