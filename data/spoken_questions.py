"""Spoken questions as outlines: where `data.questions` has a question's words, these have its clip."""

from collections.abc import Sequence

from data.formats import SampleFormat
from data.outline import Item, Outline
from data.samples import lay_out
from data.tokenizer import ANSWER, BOS, EOS, IMAGE, WordTokenizer


def spoken_vqa_sample(
    picture: Item, asked: Sequence[tuple[Item, str]], tokenizer: WordTokenizer, form: SampleFormat
) -> Outline:
    """An image, encoded once, and any number of spoken questions behind it, none hearing another.

    Trunk: `<bos> <image>…`; each branch: `<audio>… <answer> answer <eos>`, the loss on the answer and `<eos>`.

    Args:
        picture: The image (`data.items.picture_item`).
        asked: (the question's clip, one of `data.items.clip_items`; the answer's text).
        tokenizer: Knows the answers' words, and has `<audio>`.
        form: What the model asks; it has a vision and an audio encoder.
    """
    trunk = [BOS, *[IMAGE] * form.streams["patches"].tokens(picture.length)]
    branches, losses = [], []
    for clip, answer in asked:
        branch, loss = _heard(clip, answer, tokenizer, form)
        branches.append(branch)
        losses.append(loss)
    layout = lay_out(trunk, branches, [(), *losses], _placeholders(tokenizer, form))
    return Outline("spoken_vqa", layout, form, [picture, *(clip for clip, _ in asked)])


def transcription_sample(clip: Item, text: str, tokenizer: WordTokenizer, form: SampleFormat) -> Outline:
    """A clip and what it says: `<bos> <audio>… <answer> text <eos>`, the loss on the text and `<eos>`."""
    heard, loss = _heard(clip, text, tokenizer, form)
    layout = lay_out([BOS, *heard], [], [[1 + place for place in loss]], _placeholders(tokenizer, form))
    return Outline("transcription", layout, form, [clip])


def _heard(clip: Item, text: str, tokenizer: WordTokenizer, form: SampleFormat) -> tuple[list[int], range]:
    """`<audio>… <answer> text <eos>`, and where in it the text and `<eos>` stand."""
    heard = [tokenizer.special.need("audio")] * form.streams["frames"].tokens(clip.length)
    said = [*tokenizer.encode(text), EOS]
    return [*heard, ANSWER, *said], range(len(heard) + 1, len(heard) + 1 + len(said))


def _placeholders(tokenizer: WordTokenizer, form: SampleFormat) -> dict[str, int]:
    known = {"patches": IMAGE, "frames": tokenizer.special.need("audio")}
    return {field: known[field] for field in form.streams}
