"""Messages of a stored conversation as turns: placeholders in the texts are replaced by their media."""

import re
from collections.abc import Mapping, Sequence

from data.errors import BadSampleError
from data.records import MEDIA_PARTS, ContentPart, StoredPart, TextPart, Turn
from data.sources.parsing import require_text

_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}
_PLACEHOLDER_PATTERN = re.compile(f"<({'|'.join(MEDIA_PARTS)})>")

# A text, or the name of the media that a placeholder stands for.
_Piece = TextPart | str


def parse_messages(where: str, messages: object, media: Mapping[str, Sequence[StoredPart]]) -> tuple[Turn, ...]:
    """The turns of a list of messages.

    A message is {"from": "human", "value": ...} as in LLaVA, or {"role": "user", "content": ...}, where the content
    may also be a list of {"type": "text", "text": ...}, {"type": "image"}, {"type": "audio"} and {"type": "video"}. The
    n-th placeholder of a kind stands for the n-th medium of that kind, newlines next to a placeholder are dropped, and
    media of a kind without placeholders precede the first user's text. An empty system message is left out.

    Args:
        where: Name of the sample.
        messages: The value in the file.
        media: By name of their placeholders (`data.records.MEDIA_PARTS`), media in the order of these.

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
    unplaced_kinds: list[_Piece] = []
    for kind in MEDIA_PARTS:
        files = len(media.get(kind, ()))
        count = sum(piece == kind for _, pieces in drafts for piece in pieces)
        if not count:
            unplaced_kinds += [kind] * files
        elif count != files:
            raise BadSampleError(where, f"{count} <{kind}> placeholders for {files} files")
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
    pieces: list[_Piece] = []
    spans = _PLACEHOLDER_PATTERN.split(text)  # texts and, in every second place, names
    for number, span in enumerate(spans):
        if number % 2:
            pieces.append(span)
            continue
        span = span.lstrip("\n") if number else span
        span = span.rstrip("\n") if number < len(spans) - 1 else span
        if span and not span.isspace():
            pieces.append(TextPart(require_text(where, what, span)))
    return pieces


def _item(where: str, what: str, item: object) -> _Piece:
    """One item of a content list."""
    fields = item if isinstance(item, Mapping) else {}
    kind = fields.get("type")
    if kind == "text":
        return TextPart(require_text(where, what, fields.get("text")))
    if not isinstance(kind, str) or kind not in MEDIA_PARTS:
        raise BadSampleError(where, f"{what} has an item of type {kind!r}; known are text, {', '.join(MEDIA_PARTS)}")
    return kind
