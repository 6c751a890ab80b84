"""Rendering: a conversation as tokens and media, and which of the tokens the model must predict.

`SampleBuilder` renders every record so, and adds the elements to a `SampleDraft`.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, runtime_checkable

from data.records import ContentPart, MediaPart, Record, TextPart
from data.text.tokenizer import Preceding, Tokenizer


@dataclasses.dataclass(frozen=True)
class SpecialToken:
    """A special token of the tokenizer, by its field of `SpecialTokens`."""

    name: str


@dataclasses.dataclass(frozen=True)
class ControlToken:
    """A control token by its spelling, which the tokenizer's file must contain."""

    name: str


MarkupElement = str | SpecialToken | ControlToken
Markup = tuple[MarkupElement, ...]


@dataclasses.dataclass(frozen=True)
class TokenRun:
    """Adjacent tokens.

    Attributes:
        ids: Token ids, at least one.
        in_loss: Whether the model must predict them.
    """

    ids: tuple[int, ...]
    in_loss: bool


@dataclasses.dataclass(frozen=True)
class MediaPlaceholder:
    """An image, an audio clip or another medium between tokens.

    Attributes:
        part: The medium.
        generated: Whether the model must generate it; otherwise it is model input.
    """

    part: MediaPart
    generated: bool


ChatElement = TokenRun | MediaPlaceholder

Element = tuple[MarkupElement | MediaPlaceholder, bool]
"""A text, a token or a medium of a conversation, and whether it is in the loss."""


@runtime_checkable
class ConversationTemplate(Protocol):
    """The markup of conversations."""

    def conversation(self, record: Record, tokenizer: Tokenizer) -> Iterable[Element]:
        """The elements of a training sample in order.

        Raises:
            BadSampleError: A turn has an unknown role, or the assistant's turn contains a medium other than an image.
        """
        ...

    def prompt(self, record: Record, tokenizer: Tokenizer) -> Iterable[Element]:
        """The elements of the conversation up to the assistant's next answer; errors as of `conversation`."""
        ...

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Raises DataError, before any sample is read, if the tokenizer lacks a token that the template spells."""
        ...

    def end_token(self, tokenizer: Tokenizer) -> int:
        """The id of the token that ends an answer."""
        ...


Expand = Callable[[MediaPart], Iterable[ContentPart]]
"""Replaces a medium of the input by texts and media."""


def keep_media(part: MediaPart) -> Iterable[ContentPart]:
    """Every medium stays as it is."""
    return (part,)


def render_conversation(
    record: Record, template: ConversationTemplate, tokenizer: Tokenizer, expand: Expand = keep_media
) -> list[ChatElement]:
    """The conversation as a training sample: the loss covers the assistant's texts and the markup that ends them.

    Adjacent texts are encoded together, across turns too, so that words are tokenized as in plain text. Text is
    never merged across the boundary where the loss begins, because generation starts there.

    Raises:
        BadSampleError: A turn has an unknown role, or the assistant's turn contains audio.
        DataError: The tokenizer lacks a token that the template spells.
    """
    return _encode_elements(_expanded(template.conversation(record, tokenizer), expand), tokenizer)


def render_prompt(
    record: Record, template: ConversationTemplate, tokenizer: Tokenizer, expand: Expand = keep_media
) -> list[ChatElement]:
    """The conversation up to the assistant's next answer, as `render_conversation` begins it."""
    return _encode_elements(_expanded(template.prompt(record, tokenizer), expand), tokenizer)


def _expanded(elements: Iterable[Element], expand: Expand) -> Iterator[Element]:
    """The elements with the media of the input expanded."""
    for element, in_loss in elements:
        if not isinstance(element, MediaPlaceholder) or element.generated:
            yield element, in_loss
            continue
        for part in expand(element.part):
            yield (part.text if isinstance(part, TextPart) else MediaPlaceholder(part, generated=False)), in_loss


def _encode_elements(elements: Iterable[Element], tokenizer: Tokenizer) -> list[ChatElement]:
    """Encodes each run of adjacent markup with the same loss; media stay as they are."""
    encoded: list[ChatElement] = []
    markup: list[MarkupElement] = []
    markup_in_loss = False
    behind: Preceding = "nothing"

    def flush() -> None:
        nonlocal behind
        token_ids, behind = _encode_markup(markup, tokenizer, behind)
        if token_ids:
            encoded.append(TokenRun(tuple(token_ids), markup_in_loss))
        markup.clear()

    for element, in_loss in elements:
        if isinstance(element, MediaPlaceholder):
            flush()
            encoded.append(element)
            behind = "token"
            continue
        if in_loss != markup_in_loss:
            flush()
        markup_in_loss = in_loss
        markup.append(element)
    flush()
    return encoded


def _encode_markup(
    markup: Iterable[MarkupElement], tokenizer: Tokenizer, behind: Preceding
) -> tuple[list[int], Preceding]:
    """The token ids of markup, and the kind of element before the text that follows it."""
    token_ids: list[int] = []
    text = ""

    def flush() -> None:
        nonlocal behind, text
        token_ids.extend(tokenizer.encode(text, behind))
        behind, text = "text" if text else behind, ""

    for element in markup:
        if isinstance(element, str):
            text += element
            continue
        flush()
        token_ids.append(_token_id(element, tokenizer))
        # Tokenizers put a bos of theirs before the ids of the whole text, which then begins with the text itself.
        if element != SpecialToken("bos") or behind != "nothing":
            behind = "token"
    flush()
    return token_ids, behind


def resolve_markup(markup: Iterable[MarkupElement], tokenizer: Tokenizer) -> list[str | int]:
    """The markup with its tokens replaced by ids; raises DataError for a token that the tokenizer lacks."""
    return [element if isinstance(element, str) else _token_id(element, tokenizer) for element in markup]


def _token_id(element: SpecialToken | ControlToken, tokenizer: Tokenizer) -> int:
    if isinstance(element, SpecialToken):
        return tokenizer.special_tokens.require(element.name)
    return tokenizer.control_token_id(element.name)
