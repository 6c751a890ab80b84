"""Conversations as files hold them -> turns: marks in the texts become the media for which they stand."""

import re
from collections.abc import Mapping, Sequence

from data.errors import BadSampleError
from data.records import AudioPart, ContentPart, ImagePart, Media, TextPart, Turn
from data.sources.parsing import require_text

_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}
_MARKS: dict[str, type[ImagePart] | type[AudioPart]] = {"<image>": ImagePart, "<audio>": AudioPart}
_MARK = re.compile("|".join(map(re.escape, _MARKS)))

# A text, or a mark: the kind of medium that stands there.
_Piece = TextPart | type[ImagePart] | type[AudioPart]


def parse_messages(where: str, messages: object, images: Sequence[Media], clips: Sequence[Media]) -> tuple[Turn, ...]:
    """The turns of a list of messages.

    A message is {"from": "human", "value": ...} as in LLaVA, or {"role": "user", "content": ...}, where the content
    may also be a list of {"type": "text", "text": ...}, {"type": "image"} and {"type": "audio"}. The n-th mark of a
    kind stands for the n-th medium of that kind, newlines beside a mark in a text belong to the mark, and media
    without any mark come before the first user's words. An empty system message is left out.

    Args:
        where: Names the sample.
        messages: What the file holds.
        images: In the order of their `<image>` marks.
        clips: In the order of their `<audio>` marks.

    Raises:
        BadSampleError: It has another form, a message is empty, nobody answers, or there are as many marks of a kind
            as there are not media.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes) or not messages:
        raise BadSampleError(where, "the conversation is no list of messages")
    drafts = [_draft(where, number, message) for number, message in enumerate(messages, 1)]
    drafts = [(role, pieces) for role, pieces in drafts if pieces or role != "system"]
    if all(role != "assistant" for role, _ in drafts):
        raise BadSampleError(where, "no message is the assistant's, so there is nothing to learn")
    first = next((pieces for role, pieces in drafts if role == "user"), drafts[0][1])
    media = {ImagePart: [ImagePart(medium) for medium in images], AudioPart: [AudioPart(medium) for medium in clips]}
    unmarked: list[_Piece] = []
    for mark, kind in _MARKS.items():
        marks = sum(piece is kind for _, pieces in drafts for piece in pieces)
        if not marks:
            unmarked += [kind] * len(media[kind])
        elif marks != len(media[kind]):
            raise BadSampleError(where, f"{marks} {mark} marks for {len(media[kind])} files")
    first[:0] = unmarked
    waiting = {kind: iter(parts) for kind, parts in media.items()}

    def part(piece: _Piece) -> ContentPart:
        return piece if isinstance(piece, TextPart) else next(waiting[piece])

    turns = tuple(Turn(role, tuple(map(part, pieces))) for role, pieces in drafts)
    for number, turn in enumerate(turns, 1):
        if not turn.parts:
            raise BadSampleError(where, f"turn {number} ({turn.role}) is empty")
    return turns


def _draft(where: str, number: int, message: object) -> tuple[str, list[_Piece]]:
    """The role of a message and its pieces."""
    if not isinstance(message, Mapping):
        raise BadSampleError(where, f"message {number} is no object")
    speaker = message.get("from", message.get("role"))
    if not isinstance(speaker, str) or speaker not in _ROLES:
        raise BadSampleError(where, f"message {number} is from {speaker!r}; known are {', '.join(_ROLES)}")
    content = message.get("value", message.get("content"))
    what = f"message {number}"
    if isinstance(content, str):
        return _ROLES[speaker], _marked(where, what, content)
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise BadSampleError(where, f"{what} has no text")
    return _ROLES[speaker], [_item(where, what, item) for item in content]


def _marked(where: str, what: str, text: str) -> list[_Piece]:
    """A text cut at its marks."""
    marks = _MARK.findall(text)
    pieces: list[_Piece] = []
    for number, stretch in enumerate(_MARK.split(text)):
        stretch = stretch.lstrip("\n") if number else stretch
        stretch = stretch.rstrip("\n") if number < len(marks) else stretch
        if stretch and not stretch.isspace():
            pieces.append(TextPart(require_text(where, what, stretch)))
        if number < len(marks):
            pieces.append(_MARKS[marks[number]])
    return pieces


def _item(where: str, what: str, item: object) -> _Piece:
    """One item of a content that is a list."""
    kind = item.get("type") if isinstance(item, Mapping) else None
    if kind == "text":
        return TextPart(require_text(where, what, item.get("text")))
    mark = _MARKS.get(f"<{kind}>")
    if mark is None:
        raise BadSampleError(where, f"{what} has an item of type {kind!r}; known are text, image and audio")
    return mark
