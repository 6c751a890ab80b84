"""Crops of a picture to its subject, where the background has one colour: easy-VQA's shapes to be generated."""

import math

import numpy as np
from jaxtyping import Bool, UInt8

BACKGROUND_DISTANCE = 16
"""Largest difference of a channel at which a pixel still belongs to the background."""

MARGIN = 1.4
"""Side of the window divided by the longer side of the foreground."""


def crop_to_foreground(image: UInt8[np.ndarray, "h w c"]) -> UInt8[np.ndarray, "z z c"]:
    """The smallest square window with a margin around all that differs from the commonest colour.

    The window lies within the picture: at its edges the subject is not in the window's middle, and a subject that is
    longer than the picture's shorter side is cut. A picture of one colour gives the largest square in its middle.

    Args:
        image: A picture.
    """
    height, width = image.shape[:2]
    rows, columns = (_extent(line, size) for line, size in zip(_foreground_lines(image), (height, width), strict=True))
    longer = max(len(rows), len(columns))
    side = min(height, width, math.ceil(MARGIN * longer))
    top, left = (
        min(max(0, (extent.start + extent.stop - side) // 2), size - side)
        for extent, size in ((rows, height), (columns, width))
    )
    return image[top : top + side, left : left + side]


def _foreground_lines(image: UInt8[np.ndarray, "h w c"]) -> tuple[Bool[np.ndarray, " h"], Bool[np.ndarray, " w"]]:
    """Whether each row, and each column, has a pixel that differs from the commonest colour."""
    colours, counts = np.unique(image.reshape(-1, image.shape[-1]), axis=0, return_counts=True)
    background = colours[counts.argmax()].astype(int)
    differs = (np.abs(image - background) > BACKGROUND_DISTANCE).any(axis=-1)  # [h, w]
    return differs.any(axis=1), differs.any(axis=0)


def _extent(line: Bool[np.ndarray, " n"], size: int) -> range:
    """From the first to the last of the lines that are set; all of them where none is."""
    (set_lines,) = np.nonzero(line)
    return range(set_lines[0], set_lines[-1] + 1) if len(set_lines) else range(size)
