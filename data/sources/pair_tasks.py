"""A picture or a clip and its text -> the turns of a task."""

import dataclasses
from collections.abc import Callable

from data.errors import DataError
from data.records import AudioPart, ImagePart, Media, TextPart, Turn


def image_to_text_turns(media: Media, text: str) -> tuple[Turn, ...]:
    """The user shows the picture, the assistant says the text."""
    return Turn("user", (ImagePart(media),)), Turn("assistant", (TextPart(text),))


def text_to_image_turns(media: Media, text: str) -> tuple[Turn, ...]:
    """The user says the text, the assistant shows the picture."""
    return Turn("user", (TextPart(text),)), Turn("assistant", (ImagePart(media),))


def audio_to_text_turns(media: Media, text: str) -> tuple[Turn, ...]:
    """The user plays the clip, the assistant says the text."""
    return Turn("user", (AudioPart(media),)), Turn("assistant", (TextPart(text),))


@dataclasses.dataclass(frozen=True)
class PairTask:
    """What is made of a pair.

    Attributes:
        media: The kind of medium it is for: `image` or `audio`.
        turns: Builds the turns of a medium and its text.
    """

    media: str
    turns: Callable[[Media, str], tuple[Turn, ...]]


PAIR_TASKS = {
    "describe": PairTask("image", image_to_text_turns),
    "generate": PairTask("image", text_to_image_turns),
    "transcribe": PairTask("audio", audio_to_text_turns),
}


def pair_task(owner: str, name: str) -> PairTask:
    """A task by its name.

    Args:
        owner: Whose parameter it is, for the message.
        name: A key of `TASKS`.

    Raises:
        DataError: There is no such task.
    """
    if name not in PAIR_TASKS:
        raise DataError(f"{owner}.task is {name!r}; choose one of {', '.join(PAIR_TASKS)}")
    return PAIR_TASKS[name]
