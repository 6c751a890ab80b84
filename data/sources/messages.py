"""Messages of a stored conversation as turns: placeholders in the texts are replaced by their media.

Sources whose entries are conversations make their records with `parse_messages`.
"""

import re
from collections.abc import Collection, Mapping, Sequence

from data.errors import BadSampleError
from data.records import MEDIA_PARTS, ContentPart, StoredPart, TextPart, Turn
from data.sources.media_keys import refuse_media_keys
from data.sources.parsing import require_encodable, shown

_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}
# A text, or the name of the media that a placeholder stands for.
_Piece = TextPart | str


def parse_messages(where: str, messages: object, media: Mapping[str, Sequence[StoredPart]]) -> tuple[Turn, ...]:
    """The turns of a list of messages.

    A message is {"from": "human", "value": ...} as in LLaVA, or {"role": "user", "content": ...}, where the content
    may also be a list of {"type": "text", "text": ...}, {"type": "image"}, {"type": "audio"} and {"type": "video"}. The
    n-th placeholder of a kind stands for the n-th medium of that kind, texts around it stay as they are, and media of
    a kind without placeholders precede the first user's text. An empty system message is left out.

    In a text, `<audio>` and `<video>` are placeholders if the entry names media of that kind, and `<image>` too in an
    answer. Elsewhere they are text, as in HTML, but in the first or last line of a user's message, alone: then the
    file is missing. An answer of `<image>` alone is an image to be generated; one beside words must be an item of a
    list, because such a text may also tell of the image that is seen.

    Args:
        where: Name of the sample.
        messages: The value in the file.
        media: By name of their placeholders (`data.records.MEDIA_PARTS`), media in the order of these; without the
            kinds that the entry does not name.

    Raises:
        BadSampleError: The messages have another form, one is empty, names media of its own, or has `<image>` beside
            words of an answer, none is the assistant's, or the numbers of placeholders and media of a kind differ.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes) or not messages:
        raise BadSampleError(where, "the conversation is not a list of messages")
    drafts = [_draft(where, number, message, media) for number, message in enumerate(messages, 1)]
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


def _draft(where: str, number: int, message: object, named: Collection[str]) -> tuple[str, list[_Piece]]:
    """The role and the pieces of a message of an entry that names media of some kinds; none if it is blank."""
    subject = f"message {number}"
    if not isinstance(message, Mapping):
        raise BadSampleError(where, f"{subject} is not an object")
    speaker = message.get("from", message.get("role"))
    if not isinstance(speaker, str) or speaker not in _ROLES:
        raise BadSampleError(where, f"{subject} is from {shown(speaker)}; known are {', '.join(_ROLES)}")
    refuse_media_keys(where, message, ("from", "role", "value", "content"), True, subject)
    role, content = _ROLES[speaker], message.get("value", message.get("content"))
    if isinstance(content, str):
        pieces = _split_at_placeholders(content, _placeholder_kinds(role, content, named))
        if role == "assistant" and "image" in pieces and not all(map(_is_medium_or_blank, pieces)):
            raise BadSampleError(
                where,
                f"{subject} has <image> beside words of the answer, which may tell of an image that is seen; write one "
                'that is to be generated as an item {"type": "image"} of a list',
            )
    elif isinstance(content, Sequence) and not isinstance(content, bytes):
        pieces = [_item(where, subject, item) for item in content]
    else:
        raise BadSampleError(where, f"{subject} has no text")
    for piece in pieces:
        require_encodable(where, subject, piece.text if isinstance(piece, TextPart) else piece)
    blank = all(isinstance(piece, TextPart) and _is_medium_or_blank(piece) for piece in pieces)
    return role, [] if blank else [piece for piece in pieces if piece != TextPart("")]


def _is_medium_or_blank(piece: _Piece) -> bool:
    return not isinstance(piece, TextPart) or not piece.text.strip()


def _placeholder_kinds(role: str, text: str, named: Collection[str]) -> list[str]:
    """Kinds of media whose names in angle brackets are placeholders in a text, not text."""
    lines = [line.strip() for line in text.strip().splitlines()]
    is_answer = role == "assistant"

    def counts(kind: str) -> bool:
        tag = f"<{kind}>"
        if kind == "image":
            return kind in named or not is_answer or lines == [tag]
        return kind in named or (not is_answer and tag in (*lines[:1], *lines[-1:]))

    return [kind for kind in MEDIA_PARTS if counts(kind)]


def _split_at_placeholders(text: str, kinds: Collection[str]) -> list[_Piece]:
    """A text split at its placeholders."""
    spans = re.split(f"<({'|'.join(kinds)})>", text) if kinds else [text]  # every second one is a name
    return [span if number % 2 else TextPart(span) for number, span in enumerate(spans)]


def _item(where: str, subject: str, item: object) -> _Piece:
    """One item of a content list."""
    fields = item if isinstance(item, Mapping) else {}
    kind = fields.get("type")
    refuse_media_keys(where, fields, ("type", "text"), True, f"an item of {subject}")
    if kind == "text":
        text = fields.get("text")
        if not isinstance(text, str):
            raise BadSampleError(where, f"{subject} is not a text: {shown(text)}")
        return TextPart(text)
    if not isinstance(kind, str) or kind not in MEDIA_PARTS:
        known = ", ".join(MEDIA_PARTS)
        raise BadSampleError(where, f"{subject} has an item of type {shown(kind)}; known are text, {known}")
    return kind
