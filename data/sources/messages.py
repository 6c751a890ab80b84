"""Messages of a stored conversation as turns: placeholders in the texts are replaced by their media."""

import re
from collections.abc import Mapping, Sequence

from data.errors import BadSampleError
from data.records import AudioPart, ContentPart, ImagePart, Media, TextPart, Turn
from data.sources.parsing import require_text

_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}
_PLACEHOLDERS: dict[str, type[ImagePart] | type[AudioPart]] = {"<image>": ImagePart, "<audio>": AudioPart}
_PLACEHOLDER_PATTERN = re.compile("|".join(map(re.escape, _PLACEHOLDERS)))

# A text, or the kind of medium that a placeholder stands for.
_Piece = TextPart | type[ImagePart] | type[AudioPart]


def parse_messages(where: str, messages: object, images: Sequence[Media], clips: Sequence[Media]) -> tuple[Turn, ...]:
    """The turns of a list of messages.

    A message is {"from": "human", "value": ...} as in LLaVA, or {"role": "user", "content": ...}, where the content
    may also be a list of {"type": "text", "text": ...}, {"type": "image"} and {"type": "audio"}. The n-th placeholder
    of a kind stands for the n-th medium of that kind, newlines next to a placeholder are dropped, and media of a kind
    without placeholders precede the first user's text. An empty system message is left out.

    Args:
        where: Name of the sample.
        messages: The value in the file.
        images: Images in the order of their `<image>` placeholders.
        clips: Audio clips in the order of their `<audio>` placeholders.

    Raises:
        BadSampleError: The messages have another form, one is empty, none is the assistant's, or the number of
            placeholders of a kind differs from that of its media.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes) or not messages:
        raise BadSampleError(where, "the conversation is not a list of messages")
    drafts = [_draft(where, number, message) for number, message in enumerate(messages, 1)]
    drafts = [(role, pieces) for role, pieces in drafts if pieces or role != "system"]
    if all(role != "assistant" for role, _ in drafts):
        raise BadSampleError(where, "no message is the assistant's, so there is nothing to predict")
    first = next((pieces for role, pieces in drafts if role == "user"), drafts[0][1])
    media = {ImagePart: [ImagePart(medium) for medium in images], AudioPart: [AudioPart(medium) for medium in clips]}
    unplaced_kinds: list[_Piece] = []
    for placeholder, kind in _PLACEHOLDERS.items():
        count = sum(piece is kind for _, pieces in drafts for piece in pieces)
        if not count:
            unplaced_kinds += [kind] * len(media[kind])
        elif count != len(media[kind]):
            raise BadSampleError(where, f"{count} {placeholder} placeholders for {len(media[kind])} files")
    first[:0] = unplaced_kinds
    unplaced = {kind: iter(parts) for kind, parts in media.items()}

    def part(piece: _Piece) -> ContentPart:
        return piece if isinstance(piece, TextPart) else next(unplaced[piece])

    turns = tuple(Turn(role, tuple(map(part, pieces))) for role, pieces in drafts)
    for number, turn in enumerate(turns, 1):
        if not turn.parts:
            raise BadSampleError(where, f"turn {number} ({turn.role}) is empty")
    return turns


def _draft(where: str, number: int, message: object) -> tuple[str, list[_Piece]]:
    """The role and the pieces of a message."""
    if not isinstance(message, Mapping):
        raise BadSampleError(where, f"message {number} is not an object")
    speaker = message.get("from", message.get("role"))
    if not isinstance(speaker, str) or speaker not in _ROLES:
        raise BadSampleError(where, f"message {number} is from {speaker!r}; known are {', '.join(_ROLES)}")
    content = message.get("value", message.get("content"))
    what = f"message {number}"
    if isinstance(content, str):
        return _ROLES[speaker], _split_at_placeholders(where, what, content)
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise BadSampleError(where, f"{what} has no text")
    return _ROLES[speaker], [_item(where, what, item) for item in content]


def _split_at_placeholders(where: str, what: str, text: str) -> list[_Piece]:
    """A text split at its placeholders."""
    placeholders = _PLACEHOLDER_PATTERN.findall(text)
    pieces: list[_Piece] = []
    for number, span in enumerate(_PLACEHOLDER_PATTERN.split(text)):
        span = span.lstrip("\n") if number else span
        span = span.rstrip("\n") if number < len(placeholders) else span
        if span and not span.isspace():
            pieces.append(TextPart(require_text(where, what, span)))
        if number < len(placeholders):
            pieces.append(_PLACEHOLDERS[placeholders[number]])
    return pieces


def _item(where: str, what: str, item: object) -> _Piece:
    """One item of a content list."""
    fields = item if isinstance(item, Mapping) else {}
    kind = fields.get("type")
    if kind == "text":
        return TextPart(require_text(where, what, fields.get("text")))
    placeholder = _PLACEHOLDERS.get(f"<{kind}>")
    if placeholder is None:
        raise BadSampleError(where, f"{what} has an item of type {kind!r}; known are text, image and audio")
    return placeholder
