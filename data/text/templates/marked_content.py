"""Marks in the place of a conversation's texts and media; a rendered template shows by them where each one went.

`JinjaTemplate` renders a conversation with marks, and then puts the contents in their places.
"""

import dataclasses
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from data.errors import BadSampleError
from data.records import ROLES, AudioPart, ContentPart, ImagePart, MediaPart, Record, TextPart, Turn, VideoPart
from data.text.templates.chat_template import turn_content

BEGINS, ENDS = "\ue000", "\ue001"
SPACE = "\u2003"
"""White space that templates themselves do not write: around a mark, unless the template has trimmed the text."""

MARK = re.compile(f"({SPACE}?){BEGINS}([0-9]+){ENDS}({SPACE}?)")
THOUGHTS_END = "</think>"
MEDIUM = "\ufffc"
"""Stands for a medium within a text where texts are compared."""

_KINDS: dict[type, str] = {ImagePart: "image", AudioPart: "audio", VideoPart: "video"}


@dataclasses.dataclass(frozen=True)
class Marked:
    """The turns of a record as messages whose contents are marks.

    Attributes:
        messages: Messages for a template.
        parts: The part of each mark: a text, or a medium within a text.
        turns: Number of the turn of each mark.
        media: Media that the template itself places, in order.
    """

    messages: list[dict[str, Any]]
    parts: list[TextPart | MediaPart]
    turns: list[int]
    media: list[MediaPart]

    def text_of(self, match: re.Match[str]) -> TextPart | MediaPart:
        """The part of a mark, trimmed as the template has trimmed the mark."""
        part = self.parts[int(match[2])]
        if not isinstance(part, TextPart):
            return part
        text = part.text if match[1] else part.text.lstrip()
        return TextPart(text if match[3] else text.rstrip())

    def filled(self, text: str) -> str:
        """A rendered text with texts in the place of their marks, and `MEDIUM` in the place of media."""

        def fill(match: re.Match[str]) -> str:
            part = self.text_of(match)
            return part.text if isinstance(part, TextPart) else MEDIUM

        return MARK.sub(fill, text)


def mark_turns(record: Record, placed_kinds: Collection[str], lists: bool) -> Marked:
    """The turns of a record as messages of marks.

    Args:
        record: The record.
        placed_kinds: Kinds of media that the template itself places; others are placed within the text.
        lists: Whether a content is a list of parts; else it is a text.

    Raises:
        BadSampleError: A turn has an unknown role, or the assistant's turn contains a medium other than an image.
    """
    marked = Marked([], [], [], [])
    for number, turn in enumerate(record.turns):
        if turn.role not in ROLES:
            raise BadSampleError(record.key, f"a turn of role {turn.role!r}, which is none of {', '.join(ROLES)}")
        is_answer = turn.role == "assistant"
        for part in turn.parts:
            turn_content(part, is_answer, record.key)  # refuses media that no generator produces

        def mark(part: TextPart | MediaPart, number: int = number) -> str:
            marked.parts.append(part)
            marked.turns.append(number)
            return f"{SPACE}{BEGINS}{len(marked.parts) - 1}{ENDS}{SPACE}"

        thoughts, parts = _thoughts_apart(turn) if is_answer else (None, turn.parts)
        message = {"role": turn.role} if thoughts is None else {"role": turn.role, "reasoning_content": mark(thoughts)}
        placed = () if is_answer else placed_kinds
        marked.media.extend(part for part in parts if not isinstance(part, TextPart) and _kind(part) in placed)
        marked.messages.append({**message, "content": _content(parts, placed, lists, mark)})
    return marked


def plain_turns(record: Record, placed_kinds: Collection[str], lists: bool) -> list[dict[str, Any]]:
    """The turns of a record as messages of their own texts; arguments as of `mark_turns`."""

    def write(part: TextPart | MediaPart) -> str:
        return part.text if isinstance(part, TextPart) else MEDIUM

    return [
        {
            "role": turn.role,
            "content": _content(turn.parts, () if turn.role == "assistant" else placed_kinds, lists, write),
        }
        for turn in record.turns
    ]


def _content(
    parts: Iterable[ContentPart], placed: Collection[str], lists: bool, write: Callable[[ContentPart], str]
) -> str | list[dict[str, str]]:
    """The content of a message, in which `write` makes texts of parts that the template does not place."""
    if not lists:
        return "".join(map(write, parts))
    return [{"type": _kind(part)} if _kind(part) in placed else {"type": "text", "text": write(part)} for part in parts]


def _kind(part: ContentPart) -> str:
    """The type of a part of a content; empty for one that templates do not know."""
    return _KINDS.get(type(part), "")


def _thoughts_apart(turn: Turn) -> tuple[TextPart | None, Sequence[ContentPart]]:
    """The thoughts at the beginning of an answer, which templates lay out in another way, and its other parts."""
    first = turn.parts[0] if turn.parts else None
    if not isinstance(first, TextPart) or THOUGHTS_END not in first.text:
        return None, turn.parts
    thoughts, _, answer = first.text.rpartition(THOUGHTS_END)
    thoughts = thoughts.rpartition("<think>")[2].strip("\n")
    return TextPart(thoughts), (TextPart(answer.lstrip("\n")), *turn.parts[1:])


def without_leading_breaks(record: Record) -> Record:
    """The record with answers that begin with no line break."""

    def stripped(turn: Turn) -> Turn:
        first, *others = turn.parts or (None,)
        if turn.role != "assistant" or not isinstance(first, TextPart):
            return turn
        return Turn(turn.role, (TextPart(first.text.lstrip("\n")), *others))

    return Record(record.key, tuple(map(stripped, record.turns)))
