"""Spoken questions as outlines: where `data.datasets.easy_vqa_samples` has a question's words, these have its clip."""

from collections.abc import Sequence

from data.samples.sample_format import SampleFormat
from data.samples.sample_metadata import MediaItem, SampleMetadata
from data.samples.token_layout import lay_out_tokens
from data.text.word_tokenizer import ANSWER, BOS, EOS, IMAGE, WordTokenizer


def spoken_vqa_sample(
    picture: MediaItem, asked: Sequence[tuple[MediaItem, str]], tokenizer: WordTokenizer, form: SampleFormat
) -> SampleMetadata:
    """An image, encoded once, and any number of spoken questions behind it, none hearing another.

    Trunk: `<bos> <image>…`; each branch: `<audio>… <answer> answer <eos>`, the loss on the answer and `<eos>`.

    Args:
        picture: The image (`data.samples.media_items.picture_item`).
        asked: (the question's clip, one of `data.samples.media_items.clip_items`; the answer's text).
        tokenizer: Knows the answers' words, and has `<audio>`.
        form: What the model asks; it has a vision and an audio encoder.
    """
    trunk = [BOS, *[IMAGE] * form.encoder_formats["patches"].token_count(picture.length)]
    branches, losses = [], []
    for clip, answer in asked:
        branch, loss = _heard(clip, answer, tokenizer, form)
        branches.append(branch)
        losses.append(loss)
    layout = lay_out_tokens(trunk, branches, [(), *losses], _placeholders(tokenizer, form))
    return SampleMetadata("spoken_vqa", layout, form, [picture, *(clip for clip, _ in asked)])


def transcription_sample(clip: MediaItem, text: str, tokenizer: WordTokenizer, form: SampleFormat) -> SampleMetadata:
    """A clip and what it says: `<bos> <audio>… <answer> text <eos>`, the loss on the text and `<eos>`."""
    heard, loss = _heard(clip, text, tokenizer, form)
    layout = lay_out_tokens([BOS, *heard], [], [[1 + place for place in loss]], _placeholders(tokenizer, form))
    return SampleMetadata("transcription", layout, form, [clip])


def _heard(clip: MediaItem, text: str, tokenizer: WordTokenizer, form: SampleFormat) -> tuple[list[int], range]:
    """`<audio>… <answer> text <eos>`, and where in it the text and `<eos>` stand."""
    heard = [tokenizer.special_tokens.require("audio")] * form.encoder_formats["frames"].token_count(clip.length)
    said = [*tokenizer.encode(text), EOS]
    return [*heard, ANSWER, *said], range(len(heard) + 1, len(heard) + 1 + len(said))


def _placeholders(tokenizer: WordTokenizer, form: SampleFormat) -> dict[str, int]:
    known = {"patches": IMAGE, "frames": tokenizer.special_tokens.require("audio")}
    return {field: known[field] for field in form.encoder_formats}
