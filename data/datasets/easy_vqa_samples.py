"""Questions, answers and descriptions as outlines: how easy-VQA becomes tokens.

The chat templates `question` and `plain` lay out the prompts of trained models the same way (`data.datasets.prompts`).
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from data.samples.sample_format import SampleFormat
from data.samples.sample_metadata import MediaItem, SampleMetadata, TargetImage
from data.samples.token_layout import lay_out_tokens
from data.text.word_tokenizer import ANSWER, BOS, EOS, GENERATE, IMAGE, WordTokenizer

PLACEHOLDERS = {"patches": IMAGE}


def vqa_sample(
    picture: MediaItem, pairs: Iterable[tuple[str, str]], tokenizer: WordTokenizer, form: SampleFormat
) -> SampleMetadata:
    """An image, encoded once, and any number of questions behind it, none seeing another.

    Trunk: `<bos> <image>…`; each branch: `question <answer> answer <eos>`, the loss on the answer and `<eos>`.

    Args:
        picture: The image (`data.samples.media_items.picture_item`).
        pairs: (question, answer) texts.
        tokenizer: Knows their words.
        form: What the model asks.
    """
    encoded = [(tokenizer.encode(question), tokenizer.encode(answer)) for question, answer in pairs]
    branches = [[*question, ANSWER, *answer, EOS] for question, answer in encoded]
    losses = [range(len(question) + 1, len(question) + len(answer) + 2) for question, answer in encoded]
    return _seeing(picture, branches, losses, form)


def _seeing(
    picture: MediaItem, branches: Sequence[Sequence[int]], losses: Sequence[Iterable[int]], form: SampleFormat
) -> SampleMetadata:
    trunk = [BOS, *[IMAGE] * form.encoder_formats["patches"].token_count(picture.length)]
    return SampleMetadata("vqa", lay_out_tokens(trunk, branches, [(), *losses], _placeholders(form)), form, [picture])


def text_sample(question: str, answer: str, tokenizer: WordTokenizer, form: SampleFormat) -> SampleMetadata:
    """A question without an image: `<bos> question <answer> answer <eos>`, the loss on the answer and `<eos>`."""
    asked = [BOS, *tokenizer.encode(question), ANSWER]
    said = [*tokenizer.encode(answer), EOS]
    losses = [range(len(asked), len(asked) + len(said))]
    return SampleMetadata("text", lay_out_tokens([*asked, *said], [], losses, _placeholders(form)), form)


def description_sample(
    text: str, image: Callable[[], np.ndarray], tokenizer: WordTokenizer, form: SampleFormat
) -> SampleMetadata:
    """A text and the image to generate from it: `<bos> text <generate>…`, the language loss on the text.

    Args:
        text: The description.
        image: Loads the image, float32[z, z, 3] in [-1, 1] (`data.media.patches.resize`).
        tokenizer: Knows the text's words.
        form: What the model asks.
    """
    words = tokenizer.encode(text)
    count = form.target_images.conditions if form.target_images else 0
    first = 1 + len(words)
    layout = lay_out_tokens([BOS, *words, *[GENERATE] * count], [], [range(1, first)], _placeholders(form))
    drawing = TargetImage(np.arange(first, first + count, dtype=np.int32), image)
    return SampleMetadata("description", layout, form, target_images=[drawing])


def _placeholders(form: SampleFormat) -> dict[str, int]:
    return {field: PLACEHOLDERS.get(field, -1) for field in form.encoder_formats}
