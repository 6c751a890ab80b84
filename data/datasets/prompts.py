"""Prompts for a trained model: texts with placeholders for images and audio clips, laid out as training samples."""

import re
from collections.abc import Sequence

from data.datasets.conversations import SampleBuilder
from data.errors import DataError
from data.records import AudioPart, ContentPart, ImagePart, Media, Record, TextPart, Turn
from data.samples.sample_format import SampleFormat
from data.samples.sample_metadata import SampleMetadata
from data.text.chat_template import CHAT_TEMPLATES
from data.text.prompt_format import PromptFormat
from data.text.tokenizer import Tokenizer

_PLACEHOLDERS = {"<image>": ("image", ImagePart), "<audio>": ("audio clip", AudioPart)}


def prompt_record(text: str, images: Sequence[Media] = (), clips: Sequence[Media] = ()) -> Record:
    """A prompt as a record of one user turn. `<image>` and `<audio>` stand for the images and clips.

    Media of a kind without placeholders in the text precede it, images first.

    Raises:
        DataError: The number of placeholders differs from that of images or clips, or the prompt is empty.
    """
    unplaced = {"<image>": list(images), "<audio>": list(clips)}
    for placeholder, media in unplaced.items():
        name, _ = _PLACEHOLDERS[placeholder]
        count = text.count(placeholder)
        if count not in (0, len(media)):
            raise DataError(
                f"the prompt has {count} {placeholder} placeholders and {len(media)} {name}s come with it; give as "
                f"many of both, or no placeholder to put the {name}s in front"
            )
    parts: list[ContentPart] = []
    for placeholder, media in unplaced.items():
        if placeholder not in text:
            parts += [_PLACEHOLDERS[placeholder][1](medium) for medium in media]
    for piece in re.split(f"({'|'.join(_PLACEHOLDERS)})", text):
        if piece in _PLACEHOLDERS:
            parts.append(_PLACEHOLDERS[piece][1](unplaced[piece].pop(0)))
        elif piece.strip():
            parts.append(TextPart(piece))
    if not parts:
        raise DataError(f"the prompt {text!r} is empty; write a question or a description")
    return Record("the prompt", (Turn("user", tuple(parts)),))


def prompt_metadata(
    record: Record, prompt_format: PromptFormat, tokenizer: Tokenizer, sample_format: SampleFormat
) -> SampleMetadata:
    """The conversation up to the model's answer in text.

    Raises:
        BadSampleError: A medium cannot be read, or the model has no encoder for it.
        DataError: The tokenizer lacks a token that the template spells.
    """
    template = CHAT_TEMPLATES[prompt_format.template]
    return SampleBuilder(template, tokenizer, sample_format, prompt_format.tiling).prompt(record)


def image_prompt_metadata(
    record: Record, prompt_format: PromptFormat, tokenizer: Tokenizer, sample_format: SampleFormat
) -> SampleMetadata:
    """The conversation up to the image that the model generates, with its place; errors as of `prompt_metadata`."""
    template = CHAT_TEMPLATES[prompt_format.generation_template]
    return SampleBuilder(template, tokenizer, sample_format, prompt_format.tiling).image_prompt(record)
