"""The easy-VQA data set (PyPI `easy-vqa`): small images of one coloured shape each, and questions about them.

It is the data of the quickstart.
"""

import collections
import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence

import easy_vqa
import numpy as np

from data.datasets.dataset import LazySamples
from data.errors import DataError
from data.media.foreground import crop_to_foreground
from data.media.images import read_image
from data.media.patches import resize_to_square
from data.records import Media
from data.samples.encoder_format import MediaItem
from data.samples.image_format import PatchFormat, image_item
from data.samples.sample_format import SampleFormat
from data.samples.sample_metadata import SampleMetadata, TargetImage
from data.samples.token_layout import lay_out_tokens
from data.text.prompt_format import PromptFormat
from data.text.word_tokenizer import ANSWER, BOS, EOS, GENERATE, IMAGE, WordTokenizer, split_words

_READERS = {
    "train": (easy_vqa.get_train_questions, easy_vqa.get_train_image_paths),
    "test": (easy_vqa.get_test_questions, easy_vqa.get_test_image_paths),
}
_NEGATIONS = {"not", "no"}
_COLOUR_WORD, _SHAPE_WORD, _YES, _NO = "color", "shape", "yes", "no"
_PLACEHOLDERS = {"patches": IMAGE}

QuestionAnswer = tuple[str, str]

GENERATED_PARTS = ("picture", "shape")
"""Content of a description's image: a whole picture, or the square around its shape (`crop_to_foreground`)."""


class EasyVQA:
    """One split of easy-VQA (`data.datasets.dataset.Dataset`) as three kinds of samples.

    - `vqa`: one sample for each image, with all its questions;
    - `description`: one for each image, which is generated from a text such as "a blue circle" that follows from its
      questions and answers;
    - `text`: one for each question, without the image.

    Decoded images are cached (12 kB each); reading is safe from several threads.

    Attributes:
        split: `train` or `test`.
        generated_part: Content of the image of a description.
        tokenizer: Knows every word of the train split's questions, answers and descriptions.
        image_ids: Ids of the split's images, ascending; `vqa` and `description` number samples in this order.
        pairs: (question, answer) of every image id.
        questions: (question, answer) of the whole split in the package's order, which `text` follows.
        prompt_format: The default one.

    Raises:
        DataError: An unknown split or `generated_part`, a question about a missing image, or a word that the train
            split does not have.
    """

    prompt_format = PromptFormat()

    def __init__(
        self,
        split: str,
        image_paths: Mapping[int, str | os.PathLike[str]] | None = None,
        generated_part: str = "picture",
    ) -> None:
        """Reads the questions; images are read on access.

        Args:
            split: `train` or `test`.
            image_paths: File of every image id; the package's own by default.
            generated_part: Content of the image of a description: the whole `picture`, or the square around its
                `shape`, which a small generator learns in minutes.
        """
        if split not in _READERS:
            raise DataError(f"EasyVQA.split is {split!r}; choose one of {', '.join(_READERS)}")
        if generated_part not in GENERATED_PARTS:
            raise DataError(f"EasyVQA.generated_part is {generated_part!r}; choose one of {', '.join(GENERATED_PARTS)}")
        read_questions, read_image_paths = _READERS[split]
        texts, answers, image_ids = read_questions()
        self.split = split
        self.generated_part = generated_part
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
            raise DataError(
                f"easy-VQA {split}: no file for image {_first_few(missing)}; reinstall the easy-vqa package"
            )
        distinct = dict.fromkeys(text for pair in self.questions for text in pair)  # the 38,575 questions are 107
        unknown = self.tokenizer.unknown_words(" ".join(distinct))
        if unknown:
            raise DataError(f"easy-VQA {split}: words that the train split does not have: {_first_few(unknown)}")

    @property
    def evaluated_kinds(self) -> tuple[str, ...]:
        """Questions about images."""
        return ("vqa",)

    def samples_by_kind(self, sample_format: SampleFormat) -> dict[str, LazySamples]:
        """The samples of every kind for which the model has modules."""
        target_format, patch_format = sample_format.target_images, sample_format.encoder_of(PatchFormat)

        def vqa(index: int) -> SampleMetadata:
            assert patch_format is not None
            image_id = self.image_ids[index]
            image = image_item(lambda: self.image(image_id), self.image(image_id).shape[:2], patch_format)
            return vqa_sample(image, self.pairs[image_id], self.tokenizer, sample_format)

        def description(index: int) -> SampleMetadata:
            assert target_format is not None
            image_id, size = self.image_ids[index], target_format.size
            text = self.description(image_id)
            return description_sample(
                text, lambda: resize_to_square(self.generated_image(image_id), size), self.tokenizer, sample_format
            )

        def text(index: int) -> SampleMetadata:
            return text_sample(*self.questions[index], self.tokenizer, sample_format)

        vqa_samples = {"vqa": LazySamples(len(self.image_ids), vqa)} if patch_format else {}
        descriptions = {"description": LazySamples(len(self.image_ids), description)} if target_format else {}
        return vqa_samples | descriptions | {"text": LazySamples(len(self.questions), text)}

    def image(self, image_id: int) -> np.ndarray:
        """An image as uint8[height, width, 3]; raises BadSampleError if its file cannot be read."""
        # Two threads may both decode an image; they store the same pixels.
        if image_id not in self._images:
            self._images[image_id] = read_image(Media.from_file(self._image_paths[image_id]))
        return self._images[image_id]

    def generated_image(self, image_id: int) -> np.ndarray:
        """The image to generate for a description (`generated_part`), as uint8[height, width, 3]."""
        image = self.image(image_id)
        return crop_to_foreground(image) if self.generated_part == "shape" else image

    def description(self, image_id: int) -> str:
        """Text for an image from its questions: "a blue circle", "a circle", "a blue shape" or "a shape"."""
        colour, shape = known_colour_and_shape(self.pairs[image_id])
        return describe_shape(colour, shape)


def vqa_sample(
    image: MediaItem, pairs: Iterable[QuestionAnswer], tokenizer: WordTokenizer, sample_format: SampleFormat
) -> SampleMetadata:
    """An image, encoded once, and any number of questions, none of which attends to another.

    Trunk: `<bos> <image>…`; each branch: `question <answer> answer <eos>`, the loss on the answer and `<eos>`. The
    chat template `question` lays out prompts in the same way.

    Args:
        image: The image (`data.samples.image_format.image_item`).
        pairs: (question, answer) texts.
        tokenizer: Knows their words.
        sample_format: Formats that the model requires; it has a vision encoder.
    """
    encoded = [(tokenizer.encode(question), tokenizer.encode(answer)) for question, answer in pairs]
    branches = [[*question, ANSWER, *answer, EOS] for question, answer in encoded]
    loss_positions = [range(len(question) + 1, len(question) + len(answer) + 2) for question, answer in encoded]
    trunk = [BOS, *[IMAGE] * sample_format.encoder_formats["patches"].token_count(image.length)]
    layout = lay_out_tokens(trunk, branches, [(), *loss_positions], _placeholders(sample_format))
    return SampleMetadata(kind="vqa", layout=layout, sample_format=sample_format, items=[image])


def text_sample(question: str, answer: str, tokenizer: WordTokenizer, sample_format: SampleFormat) -> SampleMetadata:
    """A question without an image: `<bos> question <answer> answer <eos>`, the loss on the answer and `<eos>`."""
    question_ids = [BOS, *tokenizer.encode(question), ANSWER]
    answer_ids = [*tokenizer.encode(answer), EOS]
    loss_positions = [range(len(question_ids), len(question_ids) + len(answer_ids))]
    layout = lay_out_tokens([*question_ids, *answer_ids], [], loss_positions, _placeholders(sample_format))
    return SampleMetadata(kind="text", layout=layout, sample_format=sample_format)


def description_sample(
    text: str, image: Callable[[], np.ndarray], tokenizer: WordTokenizer, sample_format: SampleFormat
) -> SampleMetadata:
    """A text and the image to generate from it: `<bos> text <generate>…`, the language loss on the text.

    Args:
        text: The description.
        image: Loads the image, float32[z, z, 3] in [-1, 1] (`data.media.patches.resize_to_square`).
        tokenizer: Knows the text's words.
        sample_format: Formats that the model requires; it has a generator.
    """
    words = tokenizer.encode(text)
    count = sample_format.target_images.conditions if sample_format.target_images else 0
    first = 1 + len(words)
    trunk = [BOS, *words, *[GENERATE] * count]
    layout = lay_out_tokens(trunk, [], [range(1, first)], _placeholders(sample_format))
    target = TargetImage(np.arange(first, first + count, dtype=np.int32), image)
    return SampleMetadata(kind="description", layout=layout, sample_format=sample_format, target_images=[target])


def _placeholders(sample_format: SampleFormat) -> dict[str, int]:
    return {field: _PLACEHOLDERS.get(field, -1) for field in sample_format.encoder_formats}


def describe_shape(colour: str | None, shape: str | None) -> str:
    """The description of an image whose colour and shape are known as far as they are not None."""
    return " ".join(["a", *([colour] if colour else []), shape or _SHAPE_WORD])


@functools.cache
def colours_and_shapes() -> tuple[frozenset[str], frozenset[str]]:
    """All colours and shapes: the train split's answers to "what color …" and to every other "what …"."""
    questions, answers, _ = easy_vqa.get_train_questions()
    pairs = [(split_words(question), answer) for question, answer in zip(questions, answers, strict=True)]
    colours = frozenset(answer for words, answer in pairs if words[0] == "what" and _COLOUR_WORD in words)
    shapes = frozenset(answer for words, answer in pairs if words[0] == "what" and _COLOUR_WORD not in words)
    return colours, shapes


def known_colour_and_shape(pairs: Iterable[QuestionAnswer]) -> tuple[str | None, str | None]:
    """Colour and shape as far as question/answer pairs reveal them; None otherwise.

    An answer may name one itself. A question that presupposes one ("what is the blue shape?") names it too; so do yes
    to "is there a blue shape?" and no to "is there not a blue shape?".

    Raises:
        DataError: The pairs contradict each other.
    """
    named: tuple[set[str], set[str]] = (set(), set())
    for question, answer in pairs:
        words = split_words(question)
        is_negated = not _NEGATIONS.isdisjoint(words)
        if answer in (_YES, _NO) and (answer == _YES) == is_negated:
            continue
        for names, vocabulary in zip(named, colours_and_shapes(), strict=True):
            names |= vocabulary.intersection([*words, answer])
    for names in named:
        if len(names) > 1:
            raise DataError(f"questions and answers about one image name {' and '.join(sorted(names))}; keep one")
    colour, shape = (min(names, default=None) for names in named)
    return colour, shape


@functools.cache
def _train_tokenizer() -> WordTokenizer:
    questions, answers, _ = easy_vqa.get_train_questions()
    texts = {*questions, *answers, describe_shape(None, None)}
    return WordTokenizer(tuple(sorted({word for text in texts for word in split_words(text)})))


def _first_few(items: Sequence[object]) -> str:
    return ", ".join(map(str, items[:5])) + (f" and {len(items) - 5} more" if len(items) > 5 else "")
