"""Samples: what one training example brings to every module, and the pure functions that lay out its tokens.

Training, evaluation and generation lay tokens out by the same functions: a prompt is a sample without its answer.
"""

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from configs.architectures import ModelConfig
from data.errors import DataError
from data.images import fit, patchify, resize
from data.tokenizer import ANSWER, BOS, EOS, GENERATE, IMAGE, PAD, WordTokenizer


@dataclasses.dataclass(frozen=True)
class SampleFormat:
    """What a model and its capacities ask of every sample.

    Attributes:
        patch: Side of a patch in pixels.
        merge: Side of a cell in patches; a cell is one `<image>` token.
        image_size: Side z of a generated image in pixels.
        conditions: Backbone positions q that condition one generated image.
        patches: Most patches one image may have; larger images are shrunk to it.
    """

    patch: int = 8
    merge: int = 2
    image_size: int = 32
    conditions: int = 4
    patches: int = 128

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if getattr(self, field.name) < 1:
                raise DataError(f"SampleFormat.{field.name} is {getattr(self, field.name)}; it must be at least 1")
        if self.patches % self.cell:
            raise DataError(f"SampleFormat.patches = {self.patches} must be a multiple of merge² = {self.cell}")

    @classmethod
    def of(cls, model: ModelConfig, patches: int) -> "SampleFormat":
        """The format of a model with one encoder and one generator, at a row capacity of `patches`.

        Raises:
            DataError: Another number of encoders or generators, or pixels that are not RGB.
        """
        if len(model.encoders) != 1 or len(model.generators) != 1:
            raise DataError(
                f"this pipeline feeds one encoder and one generator; the model has {len(model.encoders)} and "
                f"{len(model.generators)}"
            )
        (encoder,), (generator,) = model.encoders, model.generators
        for module in (encoder, generator):
            if module.channels != 3:
                raise DataError(f"{module.name}.channels is {module.channels}; images are read as RGB, so it must be 3")
        return cls(encoder.patch, encoder.merge, generator.image_size, generator.conditions, patches)

    @property
    def cell(self) -> int:
        """Patches that one `<image>` token stands for."""
        return self.merge * self.merge

    @property
    def patch_width(self) -> int:
        """Numbers in a flattened patch."""
        return self.patch * self.patch * 3


class Layout(NamedTuple):
    """Tokens of a sample, column by column; each int32[t], `target_mask` 0 or 1.

    Attributes:
        tokens: Token ids.
        branches: 0 for the trunk, b > 0 for branch b, which sees the trunk and itself.
        positions: Position in the sample; every branch continues from the end of the trunk.
        vision_index: -1, or which of the sample's merged vision tokens takes the token's place.
        targets: The next token of the same branch, `PAD` where there is none.
        target_mask: Whether predicting the target counts in the loss.
    """

    tokens: np.ndarray
    branches: np.ndarray
    positions: np.ndarray
    vision_index: np.ndarray
    targets: np.ndarray
    target_mask: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Sample:
    """One training example; everything counts from the sample's own start.

    Attributes:
        id: Number that names the sample; keys its noise.
        kind: Which sort of sample: the data set it came from.
        layout: Its t tokens.
        patches: float32[p, patch²·3], the patches of its images, one image after the other.
        patch_images: int32[p], number 1.. of the image a patch belongs to.
        patch_positions: int32[p, 2], (row, column) of the patch in its image.
        images: float32[g, z, z, 3] in [-1, 1], the images to generate.
        conditions: int32[g, q], positions of the tokens whose hidden states condition each.
    """

    id: int
    kind: str
    layout: Layout
    patches: np.ndarray
    patch_images: np.ndarray
    patch_positions: np.ndarray
    images: np.ndarray
    conditions: np.ndarray

    @property
    def sizes(self) -> dict[str, int]:
        """What the sample takes of a row: tokens, patches and generated images."""
        return {"tokens": len(self.layout.tokens), "patches": len(self.patches), "images": len(self.images)}


def lay_out(trunk: Sequence[int], branches: Iterable[Sequence[int]], losses: Sequence[Sequence[int]]) -> Layout:
    """Lays out a trunk and the branches behind it.

    Args:
        trunk: Token ids; each `<image>` takes the next merged vision token.
        branches: Token ids of each branch.
        losses: For the trunk and then every branch, the places in it (from its start) whose *token is a target*.

    Raises:
        DataError: The first token of a trunk or of a branch is a target: nothing predicts it.
    """
    runs = [trunk, *branches]
    lengths = [len(run) for run in runs]
    tokens = np.fromiter((token for run in runs for token in run), np.int32, sum(lengths))
    starts = np.cumsum([0, *lengths[:-1]])
    branch = np.repeat(np.arange(len(runs), dtype=np.int32), lengths)
    positions = np.arange(len(tokens)) - np.repeat(starts, lengths) + np.where(branch > 0, len(trunk), 0)
    targets = np.full(len(tokens), PAD, np.int32)
    mask = np.zeros(len(tokens), np.int32)
    same_run = branch[1:] == branch[:-1]
    targets[:-1][same_run] = tokens[1:][same_run]
    for start, places in zip(starts, losses, strict=True):
        if 0 in places:
            raise DataError("the first token of a trunk or branch cannot be a target: no token of it comes before")
        mask[start - 1 + np.asarray(places, np.int64)] = 1
    is_image = tokens == IMAGE
    vision_index = np.where(is_image, np.cumsum(is_image) - 1, -1)
    return Layout(tokens, branch, positions.astype(np.int32), vision_index.astype(np.int32), targets, mask)


@functools.lru_cache(maxsize=16)
def _nothing(form: SampleFormat) -> dict[str, np.ndarray]:
    """The fields of a sample without an image to see or to generate."""
    return {
        "patches": np.zeros((0, form.patch_width), np.float32),
        "patch_images": np.zeros(0, np.int32),
        "patch_positions": np.zeros((0, 2), np.int32),
        "images": np.zeros((0, form.image_size, form.image_size, 3), np.float32),
        "conditions": np.zeros((0, form.conditions), np.int32),
    }


def vqa_sample(
    id: int, image: np.ndarray, pairs: Iterable[tuple[str, str]], tokenizer: WordTokenizer, form: SampleFormat
) -> Sample:
    """An image, encoded once, and any number of questions behind it, none seeing another.

    Trunk: `<bos> <image>…`; each branch: `question <answer> answer <eos>`, the loss on the answer and `<eos>`.

    Args:
        id: The sample's number.
        image: uint8[height, width, 3].
        pairs: (question, answer) texts.
        tokenizer: Knows their words.
        form: What the model asks.
    """
    encoded = [(tokenizer.encode(question), tokenizer.encode(answer)) for question, answer in pairs]
    branches = [[*question, ANSWER, *answer, EOS] for question, answer in encoded]
    losses = [range(len(question) + 1, len(question) + len(answer) + 2) for question, answer in encoded]
    return _seeing(id, "vqa", image, branches, losses, form)


def question_prompt(
    image: np.ndarray, question: str, tokenizer: WordTokenizer, form: SampleFormat, answer: Sequence[int] = ()
) -> Sample:
    """A question about an image, and the ids of the answer so far; the last token predicts the next."""
    branch = [*tokenizer.encode(question), ANSWER, *answer]
    return _seeing(0, "vqa", image, [branch], [()], form)


def _seeing(
    id: int,
    kind: str,
    image: np.ndarray,
    branches: Sequence[Sequence[int]],
    losses: Sequence[Sequence[int]],
    form: SampleFormat,
) -> Sample:
    pixels = fit(image, form.patch * form.merge, form.patches // form.cell)
    patches, patch_positions = patchify(pixels, form.patch, form.merge)
    trunk = [BOS, *[IMAGE] * (len(patches) // form.cell)]
    fields = _nothing(form) | {
        "patches": patches,
        "patch_images": np.ones(len(patches), np.int32),
        "patch_positions": patch_positions,
    }
    return Sample(id=id, kind=kind, layout=lay_out(trunk, branches, [(), *losses]), **fields)


def text_sample(id: int, question: str, answer: str, tokenizer: WordTokenizer, form: SampleFormat) -> Sample:
    """A question without an image: `<bos> question <answer> answer <eos>`, the loss on the answer and `<eos>`."""
    asked = [BOS, *tokenizer.encode(question), ANSWER]
    said = [*tokenizer.encode(answer), EOS]
    layout = lay_out([*asked, *said], [], [range(len(asked), len(asked) + len(said))])
    return Sample(id=id, kind="text", layout=layout, **_nothing(form))


def text_prompt(question: str, tokenizer: WordTokenizer, form: SampleFormat, answer: Sequence[int] = ()) -> Sample:
    """A question without an image, and the ids of the answer so far; the last token predicts the next."""
    tokens = [BOS, *tokenizer.encode(question), ANSWER, *answer]
    return Sample(id=0, kind="text", layout=lay_out(tokens, [], [()]), **_nothing(form))


def description_sample(id: int, text: str, image: np.ndarray, tokenizer: WordTokenizer, form: SampleFormat) -> Sample:
    """A text and the image to generate from it: `<bos> text <generate>…`, the language loss on the text.

    Args:
        id: The sample's number.
        text: The description.
        image: uint8[height, width, 3], resized to the generator's size.
        tokenizer: Knows the text's words.
        form: What the model asks.
    """
    return _generating(id, tokenizer.encode(text), resize(image, form.image_size), form, with_loss=True)


def description_prompt(id: int, text: str, tokenizer: WordTokenizer, form: SampleFormat) -> Sample:
    """A description whose image is still to be drawn: the sample's image is zeros, `id` keys the noise."""
    blank = np.zeros((form.image_size, form.image_size, 3), np.float32)
    return _generating(id, tokenizer.encode(text), blank, form, with_loss=False)


def _generating(id: int, words: Sequence[int], image: np.ndarray, form: SampleFormat, with_loss: bool) -> Sample:
    tokens = [BOS, *words, *[GENERATE] * form.conditions]
    losses = range(1, 1 + len(words)) if with_loss else ()
    first = 1 + len(words)
    fields = _nothing(form) | {
        "images": image[None],
        "conditions": np.arange(first, first + form.conditions, dtype=np.int32)[None],
    }
    return Sample(id=id, kind="description", layout=lay_out(tokens, [], [losses]), **fields)
