"""Prompts for a trained model: texts with placeholders for images and other media, laid out as training samples.

Generation makes its samples here.
"""

import re
from collections.abc import Mapping, Sequence

from data.datasets.conversations import SampleBuilder
from data.errors import DataError
from data.records import MEDIA_PARTS, ContentPart, EncoderPart, Media, Record, TextPart, Turn
from data.samples.sample_format import SampleFormat
from data.samples.sample_metadata import SampleMetadata
from data.text.prompt_format import PromptFormat
from data.text.templates.find_template import find_template
from data.text.tokenizer import Tokenizer

_PLURALS = {"image": "images", "audio": "audio clips", "video": "video clips"}


def prompt_record(text: str, media: Mapping[str, Sequence[Media]] | None = None) -> Record:
    """A prompt as a record of one user turn, with placeholders such as `<image>` where media stand.

    Media of a kind without placeholders in the text precede it: images, audio clips, video clips, then the others.

    Args:
        text: Text with `<image>`, `<audio>`, `<video>` and, of encoders of other kinds, the field of each in brackets.
        media: `image`, `audio`, `video` and fields of other encoders, with the media of each in the order of their
            placeholders.

    Raises:
        DataError: The numbers of placeholders and media differ, or the prompt is empty.
    """
    unplaced: dict[str, list[Media]] = {name: [] for name in MEDIA_PARTS}
    unplaced |= {name: list(items) for name, items in (media or {}).items()}
    parts: list[ContentPart] = []
    for name, items in unplaced.items():
        plural, count = _PLURALS.get(name, f"files of {name}"), text.count(f"<{name}>")
        if count not in (0, len(items)):
            raise DataError(
                f"the prompt has {count} <{name}> placeholders and {len(items)} {plural} come with it; give as many "
                f"of both, or no placeholder to put the {plural} in front"
            )
        if not count:
            parts += [_media_part(name, medium) for medium in items]
    # Of every two pieces the second is a name.
    for number, piece in enumerate(re.split(f"<({'|'.join(map(re.escape, unplaced))})>", text)):
        if number % 2:
            parts.append(_media_part(piece, unplaced[piece].pop(0)))
        elif piece:
            parts.append(TextPart(piece))
    if all(isinstance(part, TextPart) and not part.text.strip() for part in parts):
        raise DataError(f"the prompt {text!r} is empty; write a question or a description")
    return Record("the prompt", (Turn("user", tuple(parts)),))


def _media_part(name: str, medium: Media) -> ContentPart:
    return MEDIA_PARTS[name](medium) if name in MEDIA_PARTS else EncoderPart(medium, name)


def prompt_metadata(
    record: Record, prompt_format: PromptFormat, tokenizer: Tokenizer, sample_format: SampleFormat
) -> SampleMetadata:
    """The conversation up to the model's answer in text.

    Raises:
        BadSampleError: A medium cannot be read, or the model has no encoder for it.
        DataError: The tokenizer lacks a token that the template spells.
    """
    return _builder(prompt_format.template, prompt_format, tokenizer, sample_format).prompt(record)


def image_prompt_metadata(
    record: Record, prompt_format: PromptFormat, tokenizer: Tokenizer, sample_format: SampleFormat
) -> SampleMetadata:
    """The conversation up to the image that the model generates, with its place; errors as of `prompt_metadata`."""
    return _builder(prompt_format.generation_template, prompt_format, tokenizer, sample_format).image_prompt(record)


def _builder(
    template: str, prompt_format: PromptFormat, tokenizer: Tokenizer, sample_format: SampleFormat
) -> SampleBuilder:
    return SampleBuilder(
        find_template(template, tokenizer),
        tokenizer,
        sample_format,
        prompt_format.tiling,
        prompt_format.images,
        prompt_format.video,
    )
