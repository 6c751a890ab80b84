"""The batches of `benchmarks.gpu`, described by a file that both frameworks read: lengths and a seed, no arrays.

Pixels and token ids follow from the seed and the number of the sample, and rows are packed without dropping a sample
until the last, so that either framework makes the same arrays from the same file. A sample is a picture, or none, and
text behind it; the second half of the text is what is learned.
"""

import collections
import dataclasses
import json
import math
import pathlib
from collections.abc import Iterator, Sequence

import numpy as np

from benchmarks.gpu_sizes import Sizes
from data.samples import Layout, lay_out
from sharding.specs import module_graph

WINDOW = 64  # samples that a row is filled from: the first that fits
FIRST_WORD = 3  # the ids before it are of no word


@dataclasses.dataclass(frozen=True)
class Described:
    """One sample.

    Attributes:
        number: Keys its pixels and its text.
        text: Text tokens.
        pictures: 0 or 1.
    """

    number: int
    text: int
    pictures: int


Step = tuple[tuple[Described, ...], ...]
"""Samples of each packed row."""


def describe(sizes: Sizes, seed: int = 0) -> list[Step]:
    """The packed rows of every step."""
    samples = _draw(sizes, np.random.default_rng(seed))
    waiting: collections.deque[Described] = collections.deque()
    return [tuple(_row(samples, waiting, sizes) for _ in range(sizes.rows)) for _ in range(sizes.batches)]


def _row(samples: Iterator[Described], waiting: collections.deque[Described], sizes: Sizes) -> tuple[Described, ...]:
    row, room = [], sizes.tokens
    while True:
        while len(waiting) < WINDOW:
            waiting.append(next(samples))
        fitting = next((each for each in waiting if length(each, sizes) <= room), None)
        if fitting is None:
            return tuple(row)
        waiting.remove(fitting)
        row.append(fitting)
        room -= length(fitting, sizes)


def _draw(sizes: Sizes, random: np.random.Generator) -> Iterator[Described]:
    number = 0
    while True:
        drawn = sizes.text.median * math.exp(sizes.text.spread * random.standard_normal())
        text = round(float(np.clip(drawn, sizes.text.least, sizes.text.most)))
        yield Described(number, text, int(random.random() < sizes.pictures[1]))
        number += 1


def save(path: pathlib.Path, steps: Sequence[Step]) -> None:
    """Writes the description."""
    path.write_text(json.dumps([[[dataclasses.astuple(each) for each in row] for row in step] for step in steps]))


def load(path: pathlib.Path) -> list[Step]:
    """Reads it."""
    return [tuple(tuple(Described(*each) for each in row) for row in step) for step in json.loads(path.read_text())]


def picture_tokens(sizes: Sizes) -> int:
    """Backbone tokens of a picture."""
    return (sizes.side // sizes.model.encoders[0].patch) ** 2


def length(sample: Described, sizes: Sizes) -> int:
    """Backbone tokens of a sample."""
    return sample.text + sample.pictures * picture_tokens(sizes)


def layout(sample: Described, sizes: Sizes) -> Layout:
    """Its tokens; the last id of the vocabulary stands for a patch of the picture."""
    image = sizes.model.backbone.vocabulary - 1
    words = np.random.default_rng((0, sample.number)).integers(FIRST_WORD, image, sample.text)
    before = [image] * (sample.pictures * picture_tokens(sizes))
    learned = range(len(before) + sample.text // 2, len(before) + sample.text)
    return lay_out([*before, *words.tolist()], [], [learned], {"patches": image})


def picture(sample: Described, sizes: Sizes) -> np.ndarray:
    """Its picture, uint8[side, side, 3]."""
    return np.random.default_rng((1, sample.number)).integers(0, 256, (sizes.side, sizes.side, 3), np.uint8)


def samples_of(step: Step) -> list[Described]:
    """All samples of a step."""
    return [sample for row in step for sample in row]


def useful_tokens(step: Step, sizes: Sizes) -> int:
    """Backbone tokens that are no padding: what every contestant's tokens a second count."""
    return sum(length(sample, sizes) for sample in samples_of(step))


def step_flops(step: Step, sizes: Sizes) -> dict[str, float]:
    """Model FLOPs of a training step by module, forward and backward, attention by segment and causal by half."""
    samples, graph = samples_of(step), module_graph(sizes.model)
    lengths = np.array([length(sample, sizes) for sample in samples], float)
    seen = 1 + picture_tokens(sizes)  # with the class token
    pictures = sum(sample.pictures for sample in samples)
    loads = {
        sizes.model.encoders[0].name: np.array([pictures * seen, pictures * seen**2, pictures], float),
        sizes.model.backbone.name: np.array([lengths.sum(), (lengths**2).sum(), len(lengths)], float),
    }
    return {name: 3.0 * float(graph[name].forward_flops(load)) for name, load in loads.items()}
