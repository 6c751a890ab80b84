"""What a trained model is asked: a text with marks where pictures and clips stand, laid out as its samples were."""

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

MARKS = {"<image>": ("picture", ImagePart), "<audio>": ("clip", AudioPart)}


def prompt_record(text: str, pictures: Sequence[Media] = (), clips: Sequence[Media] = ()) -> Record:
    """A user's turn. `<image>` and `<audio>` stand where the next picture or clip does.

    Media of a kind that has no mark in the text come before it, pictures first.

    Raises:
        DataError: As many marks as pictures or clips are not there, or nothing is asked.
    """
    waiting = {"<image>": list(pictures), "<audio>": list(clips)}
    for mark, media in waiting.items():
        name, _ = MARKS[mark]
        marks = text.count(mark)
        if marks not in (0, len(media)):
            raise DataError(
                f"the prompt has {marks} {mark} marks and {len(media)} {name}s come with it; give as many of both, "
                f"or no mark to put the {name}s in front"
            )
    parts: list[ContentPart] = []
    for mark, media in waiting.items():
        if mark not in text:
            parts += [MARKS[mark][1](each) for each in media]
    for piece in re.split(f"({'|'.join(MARKS)})", text):
        if piece in MARKS:
            parts.append(MARKS[piece][1](waiting[piece].pop(0)))
        elif piece.strip():
            parts.append(TextPart(piece))
    if not parts:
        raise DataError(f"the prompt {text!r} has no word; write a question or a description")
    return Record("the prompt", (Turn("user", tuple(parts)),))


def prompt_metadata(
    record: Record, prompting: PromptFormat, tokenizer: Tokenizer, form: SampleFormat
) -> SampleMetadata:
    """The conversation up to where the model answers.

    Raises:
        BadSampleError: A picture or clip cannot be read, or the model has no encoder for it.
        DataError: The tokenizer lacks a token that the template spells.
    """
    return SampleBuilder(CHAT_TEMPLATES[prompting.template], tokenizer, form, prompting.tiling).prompt(record)


def image_prompt_metadata(
    record: Record, prompting: PromptFormat, tokenizer: Tokenizer, form: SampleFormat
) -> SampleMetadata:
    """The conversation up to where the model draws, with the place of that picture; errors as of `prompt_outline`."""
    return SampleBuilder(CHAT_TEMPLATES[prompting.generation_template], tokenizer, form, prompting.tiling).image_prompt(
        record
    )
