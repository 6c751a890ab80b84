"""A picture or a clip and its text -> the turns of a task."""

import dataclasses
from collections.abc import Callable

from data.errors import DataError
from data.records import Clip, Media, Picture, Text, Turn


def describe(media: Media, text: str) -> tuple[Turn, ...]:
    """The user shows the picture, the assistant says the text."""
    return Turn("user", (Picture(media),)), Turn("assistant", (Text(text),))


def generate(media: Media, text: str) -> tuple[Turn, ...]:
    """The user says the text, the assistant shows the picture."""
    return Turn("user", (Text(text),)), Turn("assistant", (Picture(media),))


def transcribe(media: Media, text: str) -> tuple[Turn, ...]:
    """The user plays the clip, the assistant says the text."""
    return Turn("user", (Clip(media),)), Turn("assistant", (Text(text),))


@dataclasses.dataclass(frozen=True)
class Task:
    """What is made of a pair.

    Attributes:
        media: The kind of medium it is for: `image` or `audio`.
        turns: Builds the turns of a medium and its text.
    """

    media: str
    turns: Callable[[Media, str], tuple[Turn, ...]]


TASKS = {
    "describe": Task("image", describe),
    "generate": Task("image", generate),
    "transcribe": Task("audio", transcribe),
}


def task_named(owner: str, name: str) -> Task:
    """A task by its name.

    Args:
        owner: Whose parameter it is, for the message.
        name: A key of `TASKS`.

    Raises:
        DataError: There is no such task.
    """
    if name not in TASKS:
        raise DataError(f"{owner}.task is {name!r}; choose one of {', '.join(TASKS)}")
    return TASKS[name]
