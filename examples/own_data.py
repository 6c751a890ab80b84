"""Train on data of your own, made in Python: coloured squares, and a question about the colour of each.

In the folder of this file:

    python -m mmjax.train --gin_file=own_data.gin

Copy both files and replace the records by yours. An image may be a path, the bytes of a file, a PIL image or an array.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from data.datasets.conversations import Conversations
from data.datasets.from_records import from_records

COLOURS = {"red": (200, 30, 30), "green": (30, 160, 60), "blue": (30, 60, 200), "yellow": (230, 200, 30)}
SIZE = 32  # pixels


def squares(count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Records of squares of random colours at random places, with a little noise."""
    random = np.random.default_rng(seed)
    for _ in range(count):
        colour = str(random.choice(list(COLOURS)))
        image = random.integers(225, 256, (SIZE, SIZE, 3), dtype=np.uint8)
        top, left = random.integers(0, SIZE // 2, 2)
        image[top : top + SIZE // 2, left : left + SIZE // 2] = COLOURS[colour]
        yield {"image": image, "question": "What colour is the square?", "answer": colour}


def coloured_squares(split: str) -> Conversations:
    """The data set of a split: `train` is trained on, `test` is held out and evaluated."""
    return from_records(squares(1000, seed=0) if split == "train" else squares(100, seed=1))
