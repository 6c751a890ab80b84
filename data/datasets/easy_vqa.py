"""The easy-VQA data set: small pictures of one coloured shape each, and questions about them (PyPI `easy-vqa`)."""

import collections
import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence

import easy_vqa
import numpy as np

from data.datasets.easy_vqa_samples import description_sample, text_sample, vqa_sample
from data.errors import DataError
from data.media.images import read_image
from data.media.patches import resize_to_square
from data.records import Media
from data.samples.media_items import image_item
from data.samples.sample_format import SampleFormat
from data.samples.sample_metadata import SampleMetadata
from data.text.prompt_format import PromptFormat
from data.text.word_tokenizer import WordTokenizer, split_words

_READERS = {
    "train": (easy_vqa.get_train_questions, easy_vqa.get_train_image_paths),
    "test": (easy_vqa.get_test_questions, easy_vqa.get_test_image_paths),
}
_NEGATIONS = {"not", "no"}
_COLOUR_WORD, _SHAPE_WORD, _YES, _NO = "color", "shape", "yes", "no"

QuestionAnswer = tuple[str, str]


class LazySamples:
    """Random access to the samples of one kind: `samples[index]` outlines one."""

    def __init__(self, length: int, build: Callable[[int], SampleMetadata]) -> None:
        self._length = length
        self._build = build

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> SampleMetadata:
        if not 0 <= index < self._length:
            raise IndexError(f"sample {index} of {self._length}")
        return self._build(index)


class EasyVQA:
    """One split of easy-VQA as three kinds of samples.

    - `vqa`: one sample an image, all its questions behind it;
    - `description`: one an image, what its question/answer pairs tell of it ("a blue circle") and the picture;
    - `text`: one a question, asked without the image.

    Decoded images are kept (12 kB each); reading is safe from several threads.

    Attributes:
        split: `train` or `test`.
        tokenizer: Every word of the train split's questions, answers and descriptions.
        image_ids: Ids of the split's images, ascending; `vqa` and `description` number samples in this order.
        pairs: (question, answer) texts of every image id.
        questions: (question, answer) texts of the whole split, in the package's order, which `text` follows.

    Raises:
        DataError: An unknown split, a question about an image that is not there, or a word of this split which the
            train split does not know.
    """

    def __init__(self, split: str, image_paths: Mapping[int, str | os.PathLike[str]] | None = None) -> None:
        """Reads the questions; images are read when asked for.

        Args:
            split: `train` or `test`.
            image_paths: The file of every image id; the package's own by default.
        """
        if split not in _READERS:
            raise DataError(f"EasyVQA.split is {split!r}; choose one of {', '.join(_READERS)}")
        read_questions, read_image_paths = _READERS[split]
        texts, answers, image_ids = read_questions()
        self.split = split
        self.tokenizer = _train_tokenizer()
        self.questions: tuple[QuestionAnswer, ...] = tuple(zip(texts, answers, strict=True))
        self.pairs: dict[int, list[QuestionAnswer]] = collections.defaultdict(list)
        for pair, image_id in zip(self.questions, image_ids, strict=True):
            self.pairs[image_id].append(pair)
        self.image_ids = sorted(self.pairs)
        self._image_paths = read_image_paths() if image_paths is None else dict(image_paths)
        self._images: dict[int, np.ndarray] = {}
        missing = [image_id for image_id in self.image_ids if image_id not in self._image_paths]
        if missing:
            raise DataError(f"easy-VQA {split}: no file for image {_few(missing)}; reinstall the easy-vqa package")
        unknown = self.tokenizer.unknown_words(" ".join(word for pair in self.questions for word in pair))
        if unknown:
            raise DataError(f"easy-VQA {split}: words the train split does not have: {_few(unknown)}")

    prompt_format = PromptFormat()

    @property
    def evaluated_kinds(self) -> tuple[str, ...]:
        """Questions about pictures."""
        return ("vqa",)

    def samples_by_kind(self, form: SampleFormat) -> dict[str, LazySamples]:
        """The samples by kind, laid out as `form` asks; no kind that the model has no module for."""

        def vqa(index: int) -> SampleMetadata:
            image_id = self.image_ids[index]
            picture = image_item(lambda: self.image(image_id), self.image(image_id).shape[:2], form)
            return vqa_sample(picture, self.pairs[image_id], self.tokenizer, form)

        def description(index: int) -> SampleMetadata:
            image_id, size = self.image_ids[index], form.target_images.size
            text = self.description(image_id)
            return description_sample(text, lambda: resize_to_square(self.image(image_id), size), self.tokenizer, form)

        def text(index: int) -> SampleMetadata:
            return text_sample(*self.questions[index], self.tokenizer, form)

        seen = {"vqa": LazySamples(len(self.image_ids), vqa)} if form.patches else {}
        drawn = {"description": LazySamples(len(self.image_ids), description)} if form.target_images else {}
        return seen | drawn | {"text": LazySamples(len(self.questions), text)}

    def image(self, image_id: int) -> np.ndarray:
        """The picture as uint8[height, width, 3].

        Raises:
            BadSampleError: Its file cannot be read.
        """
        # Two threads may decode the same picture once each; both write the same pixels.
        if image_id not in self._images:
            self._images[image_id] = read_image(Media.from_file(self._image_paths[image_id]))
        return self._images[image_id]

    def description(self, image_id: int) -> str:
        """What the pairs tell of the picture: "a blue circle", "a circle", "a blue shape" or "a shape"."""
        colour, shape = known_colour_and_shape(self.pairs[image_id])
        return describe_shape(colour, shape)


def describe_shape(colour: str | None, shape: str | None) -> str:
    """The description of a picture of which the colour, the shape, both or nothing is known."""
    return " ".join(["a", *([colour] if colour else []), shape or _SHAPE_WORD])


@functools.cache
def colours_and_shapes() -> tuple[frozenset[str], frozenset[str]]:
    """The colours and the shapes there are: the train split's answers to "what color …" and to any other "what …"."""
    questions, answers, _ = easy_vqa.get_train_questions()
    asked = [(split_words(question), answer) for question, answer in zip(questions, answers, strict=True)]
    colours = frozenset(answer for words, answer in asked if words[0] == "what" and _COLOUR_WORD in words)
    shapes = frozenset(answer for words, answer in asked if words[0] == "what" and _COLOUR_WORD not in words)
    return colours, shapes


def known_colour_and_shape(pairs: Iterable[QuestionAnswer]) -> tuple[str | None, str | None]:
    """Colour and shape as far as question/answer pairs tell them, None where they do not.

    An answer names one itself; a question that takes one for granted ("what is the blue shape?") names it too; so does
    a yes to "is there a blue shape?" and a no to "is there not a blue shape?".

    Raises:
        DataError: The pairs contradict each other.
    """
    told: list[set[str]] = [set(), set()]
    for question, answer in pairs:
        words = split_words(question)
        denies = not _NEGATIONS.isdisjoint(words)
        if answer in (_YES, _NO) and (answer == _YES) == denies:
            continue
        for found, known in zip(told, colours_and_shapes(), strict=True):
            found |= known.intersection([*words, answer])
    for found in told:
        if len(found) > 1:
            raise DataError(f"questions and answers tell of one picture {' and '.join(sorted(found))}; keep one")
    colour, shape = (min(found, default=None) for found in told)
    return colour, shape


@functools.cache
def _train_tokenizer() -> WordTokenizer:
    questions, answers, _ = easy_vqa.get_train_questions()
    words = {word for text in {*questions, *answers, describe_shape(None, None)} for word in split_words(text)}
    return WordTokenizer(tuple(sorted(words)))


def _few(items: Sequence[object]) -> str:
    return ", ".join(map(str, items[:5])) + (f" and {len(items) - 5} more" if len(items) > 5 else "")
