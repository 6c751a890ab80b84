"""Questions, answers and descriptions as outlines: how easy-VQA becomes tokens.

The chat templates `question` and `plain` lay out the prompts of trained models the same way (`data.prompts`).
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from data.formats import SampleFormat
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
    words = tokenizer.encode(text)
    count = form.drawing.conditions if form.drawing else 0
    first = 1 + len(words)
    layout = lay_out([BOS, *words, *[GENERATE] * count], [], [range(1, first)], _placeholders(form))
    drawing = Drawing(np.arange(first, first + count, dtype=np.int32), image)
    return Outline("description", layout, form, drawings=[drawing])


def _placeholders(form: SampleFormat) -> dict[str, int]:
    return {field: PLACEHOLDERS.get(field, -1) for field in form.streams}
