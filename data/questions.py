"""Questions, answers and descriptions as outlines: how easy-VQA, and prompts of trained models, become tokens.

Training, evaluation and generation lay tokens out by the same functions: a prompt is a sample without its answer.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from data.formats import SampleFormat
from data.items import picture_item
from data.outline import Drawing, Item, Outline
from data.samples import lay_out
from data.tokenizer import ANSWER, BOS, EOS, GENERATE, IMAGE, WordTokenizer

PLACEHOLDERS = {"patches": IMAGE}


def vqa_sample(
    picture: Item, pairs: Iterable[tuple[str, str]], tokenizer: WordTokenizer, form: SampleFormat
) -> Outline:
    """An image, encoded once, and any number of questions behind it, none seeing another.

    Trunk: `<bos> <image>…`; each branch: `question <answer> answer <eos>`, the loss on the answer and `<eos>`.

    Args:
        picture: The image (`data.items.picture_item`).
        pairs: (question, answer) texts.
        tokenizer: Knows their words.
        form: What the model asks.
    """
    encoded = [(tokenizer.encode(question), tokenizer.encode(answer)) for question, answer in pairs]
    branches = [[*question, ANSWER, *answer, EOS] for question, answer in encoded]
    losses = [range(len(question) + 1, len(question) + len(answer) + 2) for question, answer in encoded]
    return _seeing(picture, branches, losses, form)


def question_prompt(
    image: np.ndarray, question: str, tokenizer: WordTokenizer, form: SampleFormat, answer: Sequence[int] = ()
) -> Outline:
    """A question about uint8[height, width, 3] pixels, and the ids of the answer so far; the last token predicts."""
    branch = [*tokenizer.encode(question), ANSWER, *answer]
    picture = picture_item(lambda: image, image.shape[:2], form)
    return _seeing(picture, [branch], [()], form)


def _seeing(
    picture: Item, branches: Sequence[Sequence[int]], losses: Sequence[Iterable[int]], form: SampleFormat
) -> Outline:
    trunk = [BOS, *[IMAGE] * form.streams["patches"].tokens(picture.length)]
    return Outline("vqa", lay_out(trunk, branches, [(), *losses], _placeholders(form)), form, [picture])


def text_sample(question: str, answer: str, tokenizer: WordTokenizer, form: SampleFormat) -> Outline:
    """A question without an image: `<bos> question <answer> answer <eos>`, the loss on the answer and `<eos>`."""
    asked = [BOS, *tokenizer.encode(question), ANSWER]
    said = [*tokenizer.encode(answer), EOS]
    losses = [range(len(asked), len(asked) + len(said))]
    return Outline("text", lay_out([*asked, *said], [], losses, _placeholders(form)), form)


def text_prompt(question: str, tokenizer: WordTokenizer, form: SampleFormat, answer: Sequence[int] = ()) -> Outline:
    """A question without an image, and the ids of the answer so far; the last token predicts the next."""
    tokens = [BOS, *tokenizer.encode(question), ANSWER, *answer]
    return Outline("text", lay_out(tokens, [], [()], _placeholders(form)), form)


def description_sample(
    text: str, image: Callable[[], np.ndarray], tokenizer: WordTokenizer, form: SampleFormat
) -> Outline:
    """A text and the image to generate from it: `<bos> text <generate>…`, the language loss on the text.

    Args:
        text: The description.
        image: Loads the image, float32[z, z, 3] in [-1, 1] (`data.images.resize`).
        tokenizer: Knows the text's words.
        form: What the model asks.
    """
    return _generating(tokenizer.encode(text), image, form, with_loss=True)


def description_prompt(text: str, tokenizer: WordTokenizer, form: SampleFormat) -> Outline:
    """A description whose image is still to be drawn: the sample's image is zeros."""
    size = form.drawing.size if form.drawing else 1
    return _generating(tokenizer.encode(text), lambda: np.zeros((size, size, 3), np.float32), form, with_loss=False)


def _generating(words: Sequence[int], image: Callable[[], np.ndarray], form: SampleFormat, with_loss: bool) -> Outline:
    count = form.drawing.conditions if form.drawing else 0
    losses = range(1, 1 + len(words)) if with_loss else ()
    first = 1 + len(words)
    layout = lay_out([BOS, *words, *[GENERATE] * count], [], [losses], _placeholders(form))
    drawing = Drawing(np.arange(first, first + count, dtype=np.int32), image)
    return Outline("description", layout, form, drawings=[drawing])


def _placeholders(form: SampleFormat) -> dict[str, int]:
    return {field: PLACEHOLDERS.get(field, -1) for field in form.streams}
