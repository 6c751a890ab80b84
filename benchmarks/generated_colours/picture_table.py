"""Small pictures beside each other, enlarged so that their pixels are seen."""

import numpy as np
from jaxtyping import Float

PIXEL = 4
"""Side of a pixel of a picture, in pixels of the table."""

GAP = 6
"""White pixels between pictures."""


def picture_table(
    pictures: Float[np.ndarray, "columns rows z z 3"],
) -> Float[np.ndarray, "height width 3"]:
    """A table of pictures in [-1, 1], on white.

    Args:
        pictures: The pictures of each column, from above.
    """
    columns, rows, side = pictures.shape[:3]
    enlarged = pictures.repeat(PIXEL, axis=2).repeat(PIXEL, axis=3)
    cell = side * PIXEL + GAP
    table = np.ones((rows * cell - GAP, columns * cell - GAP, 3), pictures.dtype)
    for column, row in np.ndindex(columns, rows):
        top, left = row * cell, column * cell
        table[top : top + side * PIXEL, left : left + side * PIXEL] = enlarged[column, row]
    return table
