"""What a trained model is asked: a text with marks where pictures and clips stand, laid out as its samples were."""

import re
from collections.abc import Sequence

from data.chat import TEMPLATES
from data.conversations import Builder
from data.errors import DataError
from data.formats import SampleFormat
from data.outline import Outline
from data.prompting import Prompting
from data.records import Clip, Media, Part, Picture, Record, Text, Turn
from data.tokenizers.interface import Tokenizer

MARKS = {"<image>": ("picture", Picture), "<audio>": ("clip", Clip)}


def asked(text: str, pictures: Sequence[Media] = (), clips: Sequence[Media] = ()) -> Record:
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
    parts: list[Part] = []
    for mark, media in waiting.items():
        if mark not in text:
            parts += [MARKS[mark][1](each) for each in media]
    for piece in re.split(f"({'|'.join(MARKS)})", text):
        if piece in MARKS:
            parts.append(MARKS[piece][1](waiting[piece].pop(0)))
        elif piece.strip():
            parts.append(Text(piece))
    if not parts:
        raise DataError(f"the prompt {text!r} has no word; write a question or a description")
    return Record("the prompt", (Turn("user", tuple(parts)),))


def prompt_outline(record: Record, prompting: Prompting, tokenizer: Tokenizer, form: SampleFormat) -> Outline:
    """The conversation up to where the model answers.

    Raises:
        BadSampleError: A picture or clip cannot be read, or the model has no encoder for it.
        DataError: The tokenizer lacks a token that the template spells.
    """
    return Builder(TEMPLATES[prompting.template], tokenizer, form, prompting.tiling).prompt(record)


def drawing_outline(record: Record, prompting: Prompting, tokenizer: Tokenizer, form: SampleFormat) -> Outline:
    """The conversation up to where the model draws, with the place of that picture; errors as of `prompt_outline`."""
    return Builder(TEMPLATES[prompting.drawing], tokenizer, form, prompting.tiling).drawing(record)
