"""The batches of `benchmarks.gpu`, described by a file that both frameworks read: lengths and a seed, no arrays.

Pixels and token ids follow from the seed and the number of the sample, and rows are packed without dropping a sample
until the last, so that either framework makes the same arrays from the same file. A sample is a text, with or without
a picture before it. The second half of the text is learned.
"""

import collections
import dataclasses
import json
import math
import pathlib
from collections.abc import Iterator, Sequence

import numpy as np

from benchmarks.gpu.sizes import BenchmarkSizes
from data.samples.token_layout import TokenLayout, lay_out_tokens
from sharding.specs.layers.layer import make_loads
from sharding.specs.modules import module_graph

WINDOW = 64
"""A row is filled from this many waiting samples, always with the first that fits."""
FIRST_WORD = 3
"""Smallest token id of a word."""


@dataclasses.dataclass(frozen=True)
class SampleDescription:
    """Describes one sample.

    Attributes:
        number: Seeds its pixels and its text.
        text_tokens: Number of text tokens.
        pictures: Number of pictures, 0 or 1.
    """

    number: int
    text_tokens: int
    pictures: int


Step = tuple[tuple[SampleDescription, ...], ...]
"""The samples of each packed row."""


def draw_steps(sizes: BenchmarkSizes, seed: int = 0) -> list[Step]:
    """Draws the packed rows of every step."""
    samples = _draw(sizes, np.random.default_rng(seed))
    waiting: collections.deque[SampleDescription] = collections.deque()
    return [tuple(_row(samples, waiting, sizes) for _ in range(sizes.rows)) for _ in range(sizes.batches)]


def _row(
    samples: Iterator[SampleDescription], waiting: collections.deque[SampleDescription], sizes: BenchmarkSizes
) -> tuple[SampleDescription, ...]:
    row, room = [], sizes.tokens
    while True:
        while len(waiting) < WINDOW:
            waiting.append(next(samples))
        fitting = next((sample for sample in waiting if sample_tokens(sample, sizes) <= room), None)
        if fitting is None:
            return tuple(row)
        waiting.remove(fitting)
        row.append(fitting)
        room -= sample_tokens(fitting, sizes)


def _draw(sizes: BenchmarkSizes, random: np.random.Generator) -> Iterator[SampleDescription]:
    number = 0
    while True:
        drawn = sizes.text.median * math.exp(sizes.text.sigma * random.standard_normal())
        text = round(float(np.clip(drawn, sizes.text.minimum, sizes.text.maximum)))
        yield SampleDescription(number, text, int(random.random() < sizes.pictures[1]))
        number += 1


def save_steps(path: pathlib.Path, steps: Sequence[Step]) -> None:
    """Writes the steps to a file."""
    path.write_text(json.dumps([[[dataclasses.astuple(sample) for sample in row] for row in step] for step in steps]))


def load_steps(path: pathlib.Path) -> list[Step]:
    """Reads the steps that `save_steps` wrote."""
    return [
        tuple(tuple(SampleDescription(*sample) for sample in row) for row in step)
        for step in json.loads(path.read_text())
    ]


def picture_tokens(sizes: BenchmarkSizes) -> int:
    """Backbone tokens of a picture."""
    return (sizes.side // sizes.model.encoders[0].patch) ** 2


def sample_tokens(sample: SampleDescription, sizes: BenchmarkSizes) -> int:
    """Backbone tokens of a sample."""
    return sample.text_tokens + sample.pictures * picture_tokens(sizes)


def sample_layout(sample: SampleDescription, sizes: BenchmarkSizes) -> TokenLayout:
    """The tokens of a sample. The last id of the vocabulary stands for a patch of the picture."""
    image = sizes.model.backbone.vocabulary - 1
    words = np.random.default_rng((0, sample.number)).integers(FIRST_WORD, image, sample.text_tokens)
    before = [image] * (sample.pictures * picture_tokens(sizes))
    learned = range(len(before) + sample.text_tokens // 2, len(before) + sample.text_tokens)
    return lay_out_tokens([*before, *words.tolist()], [], [learned], {"patches": image})


def sample_picture(sample: SampleDescription, sizes: BenchmarkSizes) -> np.ndarray:
    """The picture of a sample, uint8 `[side, side, 3]`."""
    return np.random.default_rng((1, sample.number)).integers(0, 256, (sizes.side, sizes.side, 3), np.uint8)


def step_samples(step: Step) -> list[SampleDescription]:
    """All samples of a step."""
    return [sample for row in step for sample in row]


def useful_tokens(step: Step, sizes: BenchmarkSizes) -> int:
    """Backbone tokens that are not padding. The tokens per second of both frameworks count these."""
    return sum(sample_tokens(sample, sizes) for sample in step_samples(step))


def step_flops(step: Step, sizes: BenchmarkSizes) -> dict[str, float]:
    """Model FLOPs of a training step by module, forward and backward, attention by segment and causal by half."""
    samples, graph = step_samples(step), module_graph(sizes.model)
    lengths = np.array([sample_tokens(sample, sizes) for sample in samples], float)
    patches = 1 + picture_tokens(sizes)  # with the class token
    pictures = sum(sample.pictures for sample in samples)
    loads = {
        sizes.model.encoders[0].name: make_loads(pictures * patches, pictures * patches**2, pictures),
        sizes.model.backbone.name: make_loads(lengths.sum(), (lengths**2).sum(), len(lengths)),
    }
    return {name: 3.0 * float(graph[name].forward_flops(load)) for name, load in loads.items()}
