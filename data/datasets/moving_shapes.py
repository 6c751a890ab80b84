"""Moving shapes: short video files in which a shape moves one way, and the question which way it moves.

    train.json          LLaVA's layout
    clips/train/000017.mp4

A shape that leaves the picture on one side comes back on the other, and begins anywhere: no single frame says anything
about the way, so a model must compare frames and know their order.
"""

import dataclasses
import json
import os
import pathlib
from collections.abc import Iterator

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageDraw

from data.datasets.conversations import SPLITS, Conversations
from data.errors import DataError
from data.media.clips.video_sampling import VideoSampling
from data.sources.llava import LlavaJson
from data.text.video_layout import VideoLayout
from data.text.word_tokenizer import WordTokenizer, split_words

QUESTION = "Which way does the shape move?"
DIRECTIONS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}
"""(columns, rows) of a step, by answer."""

SIDE = 32
"""Side of a frame in pixels."""
FRAME_RATE = 4
FRAMES = range(6, 13)
"""Numbers of frames that clips have."""

_COLORS = ("crimson", "gold", "limegreen", "royalblue", "darkviolet", "black")
_BACKGROUNDS = ("white", "lightgray", "linen", "lavender")
_RADII = range(4, 7)
_STEPS = range(2, 4)  # pixels from a frame to the next


@dataclasses.dataclass(frozen=True)
class MovingShape:
    """A clip.

    Attributes:
        direction: Key of `DIRECTIONS`.
        frames: uint8[frames, SIDE, SIDE, 3].
    """

    direction: str
    frames: UInt8[np.ndarray, "frames side side 3"]


def draw_clip(split: str, number: int) -> MovingShape:
    """Clip number `number` of a split; always the same."""
    random = np.random.default_rng((SPLITS.index(split), number))
    direction = str(random.choice(list(DIRECTIONS)))
    background, color = str(random.choice(_BACKGROUNDS)), str(random.choice(_COLORS))
    corners = int(random.choice((0, 3, 4)))  # 0 for a circle
    radius, step, count = (int(random.choice(choices)) for choices in (_RADII, _STEPS, FRAMES))
    start = random.integers(0, SIDE, 2)
    path = start + step * np.outer(np.arange(count), DIRECTIONS[direction])
    return MovingShape(direction, np.stack([_draw(place % SIDE, corners, radius, color, background) for place in path]))


def _draw(place: np.ndarray, corners: int, radius: int, color: str, background: str) -> np.ndarray:
    image = Image.new("RGB", (SIDE, SIDE), background)
    canvas = ImageDraw.Draw(image)
    for column, row in np.ndindex(3, 3):  # where it crosses an edge, the rest of it is on the other side
        x, y = (place + SIDE * (np.array((column, row)) - 1)).tolist()
        if corners:
            canvas.regular_polygon((x, y, radius), corners, fill=color)
        else:
            canvas.ellipse((x - radius, y - radius, x + radius, y + radius), fill=color)
    return np.asarray(image)


def write_moving_shapes(folder: str | os.PathLike[str], counts: dict[str, int]) -> Iterator[pathlib.Path]:
    """Writes clips and questions, and yields each file when it is there; a split's questions are written last.

    Args:
        folder: Created if missing.
        counts: Number of clips by split.

    Raises:
        DataError: The folder cannot be written.
    """
    from data.media.clips.video_writing import write_clip  # needs the extra `video`

    root = pathlib.Path(folder)
    for split, count in counts.items():
        entries = []
        for number in range(count):
            shape = draw_clip(split, number)
            path = root / "clips" / split / f"{number:06}.mp4"
            write_clip(path, shape.frames, FRAME_RATE)
            entries.append(
                {
                    "id": f"{split}/{number}",
                    "video": path.relative_to(root).as_posix(),
                    "conversations": [
                        {"from": "human", "value": f"<video>\n{QUESTION}"},
                        {"from": "gpt", "value": shape.direction},
                    ],
                }
            )
            yield path
        try:
            (root / f"{split}.json").write_text(json.dumps(entries, indent=1))
        except OSError as error:
            raise DataError(f"{root} cannot be written ({error}); give a folder that can") from error
        yield root / f"{split}.json"


def moving_shapes(split: str, folder: str = "shapes") -> Conversations:
    """A split of a folder that `python -m mmjax.draw_clips` wrote, as a data set (`data.datasets.dataset.Dataset`).

    Raises:
        DataError: The folder is incomplete.
    """
    path = pathlib.Path(folder, f"{split}.json")
    if not path.is_file():
        raise DataError(f"there is no {path}; python -m mmjax.draw_clips --folder={folder} writes it")
    source = (("moving_shapes", LlavaJson(os.fspath(path), folder)),)
    return Conversations(
        split=split,
        train=source if split == "train" else (),
        test=source if split == "test" else (),
        tokenizer=WordTokenizer((*split_words(QUESTION), *DIRECTIONS)),
        video=VideoLayout(sampling=VideoSampling(rate=float(FRAME_RATE), max_frames=max(FRAMES))),
    )
