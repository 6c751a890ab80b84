"""Pair tasks: an image, an audio clip or a video clip and its text as the turns of a conversation.

Sources of pairs (WebDataset, LibriSpeech, tables) make their records with these tasks.
"""

import dataclasses
from collections.abc import Callable
from typing import Literal

from data.errors import DataError
from data.records import AudioPart, ImagePart, Media, TextPart, Turn, VideoPart


def image_to_text_turns(media: Media, text: str) -> tuple[Turn, ...]:
    """The user shows the image, the assistant answers with the text."""
    return Turn("user", (ImagePart(media),)), Turn("assistant", (TextPart(text),))


def text_to_image_turns(media: Media, text: str) -> tuple[Turn, ...]:
    """The user writes the text, the assistant answers with the image."""
    return Turn("user", (TextPart(text),)), Turn("assistant", (ImagePart(media),))


def audio_to_text_turns(media: Media, text: str) -> tuple[Turn, ...]:
    """The user plays the clip, the assistant answers with the text."""
    return Turn("user", (AudioPart(media),)), Turn("assistant", (TextPart(text),))


def video_to_text_turns(media: Media, text: str) -> tuple[Turn, ...]:
    """The user plays the video clip, the assistant answers with the text."""
    return Turn("user", (VideoPart(media),)), Turn("assistant", (TextPart(text),))


@dataclasses.dataclass(frozen=True)
class PairTask:
    """A task over pairs of a medium and a text.

    Attributes:
        media: Kind of the medium.
        turns: Makes the turns from the medium and the text.
    """

    media: Literal["image", "audio", "video"]
    turns: Callable[[Media, str], tuple[Turn, ...]]


PAIR_TASKS = {
    "describe": PairTask("image", image_to_text_turns),
    "generate": PairTask("image", text_to_image_turns),
    "transcribe": PairTask("audio", audio_to_text_turns),
    "describe_video": PairTask("video", video_to_text_turns),
}


def pair_task(owner: str, name: str) -> PairTask:
    """A task by name.

    Args:
        owner: Class whose parameter `task` it is, for the message.
        name: A key of `PAIR_TASKS`.

    Raises:
        DataError: There is no such task.
    """
    if name not in PAIR_TASKS:
        raise DataError(f"{owner}.task is {name!r}; choose one of {', '.join(PAIR_TASKS)}")
    return PAIR_TASKS[name]
