"""Chat templates: a conversation as tokens and media, and which of the tokens the model must predict."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator

from data.errors import BadSampleError
from data.records import ROLES, ContentPart, ImagePart, MediaPart, Record, TextPart, Turn
from data.text.tokenizer import Tokenizer


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
class TurnTemplate:
    """The markup around the content of a turn.

    Attributes:
        prefix, suffix: Precede and follow the turn; never in the loss.
        answer_prefix, answer_suffix: Precede and follow the turn's content, and are in the loss where the content is:
            the model itself must begin and end an answer.
    """

    prefix: Markup = ()
    answer_prefix: Markup = ()
    answer_suffix: Markup = ()
    suffix: Markup = ()

    @property
    def markup(self) -> Markup:
        """All of it in order."""
        return self.prefix + self.answer_prefix + self.answer_suffix + self.suffix


@dataclasses.dataclass(frozen=True)
class ChatTemplate:
    """The markup of a conversation; the loss covers the assistant's turns only.

    Attributes:
        system, user, assistant: Templates of the turns of each role.
        prefix: Begins a conversation.
        default_system_prompt: Text of the system where a conversation has no system turn; none where empty.
    """

    system: TurnTemplate
    user: TurnTemplate
    assistant: TurnTemplate
    prefix: Markup = (SpecialToken("bos"),)
    default_system_prompt: str = ""

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Raises DataError, before any sample is read, if the tokenizer lacks a token that the template spells."""
        for markup in (self.prefix, self.system.markup, self.user.markup, self.assistant.markup):
            _resolve(markup, tokenizer)

    def end_token(self, tokenizer: Tokenizer) -> int:
        """The id of the token that ends an answer."""
        return next(
            element for element in _resolve(self.assistant.answer_suffix, tokenizer) if isinstance(element, int)
        )


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

# No markup: captions, transcripts, interleaved documents.
PLAIN = ChatTemplate(TurnTemplate(), TurnTemplate(), TurnTemplate(answer_suffix=(SpecialToken("eos"),)))

# `<bos> question <answer> answer <eos>`, as `data.datasets.easy_vqa` lays questions out.
QUESTION = dataclasses.replace(PLAIN, user=TurnTemplate(suffix=(SpecialToken("answer"),)))

# Vicuna 1.1, used by LLaVA-1.5 (arXiv 2310.03744). To continue from its weights, set `default_system_prompt` to its
# system prompt.
VICUNA = ChatTemplate(
    system=TurnTemplate(suffix=(" ",)),
    user=TurnTemplate(prefix=("USER: ",), suffix=(" ",)),
    assistant=TurnTemplate(prefix=("ASSISTANT:",), answer_prefix=(" ",), answer_suffix=(SpecialToken("eos"),)),
)


def _llama3_turn(role: str) -> TurnTemplate:
    header = (ControlToken("<|start_header_id|>"), role, ControlToken("<|end_header_id|>"), "\n\n")
    return TurnTemplate(prefix=header, answer_suffix=(ControlToken("<|eot_id|>"),))


# Llama 3 (arXiv 2407.21783); its bos is <|begin_of_text|>.
LLAMA3 = ChatTemplate(_llama3_turn("system"), _llama3_turn("user"), _llama3_turn("assistant"))


def _chatml_turn(role: str) -> TurnTemplate:
    return TurnTemplate(
        prefix=(ControlToken("<|im_start|>"), f"{role}\n"), answer_suffix=(ControlToken("<|im_end|>"),), suffix=("\n",)
    )


# ChatML of Qwen (arXiv 2309.16609), without a bos, and of InternLM2 (arXiv 2403.17297), with one.
CHATML = ChatTemplate(_chatml_turn("system"), _chatml_turn("user"), _chatml_turn("assistant"), prefix=())
INTERNLM2 = dataclasses.replace(CHATML, prefix=(SpecialToken("bos"),))

CHAT_TEMPLATES = {
    "plain": PLAIN,
    "question": QUESTION,
    "vicuna": VICUNA,
    "llama3": LLAMA3,
    "chatml": CHATML,
    "internlm2": INTERNLM2,
}


def render_conversation(record: Record, template: ChatTemplate, tokenizer: Tokenizer) -> list[ChatElement]:
    """The conversation as a training sample: the loss covers the assistant's texts and the markup that ends them.

    Adjacent texts are encoded together, across turns too, so that words are tokenized as in plain text. Text is
    never merged across the boundary where the loss begins, because generation starts there.

    Raises:
        BadSampleError: A turn has an unknown role, or the assistant's turn contains audio.
        DataError: The tokenizer lacks a token that the template spells.
    """
    return _encode_elements(_conversation_elements(record, template), tokenizer)


def render_prompt(record: Record, template: ChatTemplate, tokenizer: Tokenizer) -> list[ChatElement]:
    """The conversation up to the assistant's next answer: what `render_conversation` gives before that answer."""
    conversation = _conversation_elements(record, template)
    return _encode_elements(itertools.chain(conversation, _with_loss(template.assistant.prefix, False)), tokenizer)


_Element = tuple[MarkupElement | MediaPlaceholder, bool]  # with: whether it is in the loss


def _conversation_elements(record: Record, template: ChatTemplate) -> Iterator[_Element]:
    """The elements of a conversation in order."""
    turns = record.turns
    if template.default_system_prompt and not any(turn.role == "system" for turn in turns):
        turns = (Turn("system", (TextPart(template.default_system_prompt),)), *turns)
    turn_templates = dict(zip(ROLES, (template.system, template.user, template.assistant), strict=True))
    yield from _with_loss(template.prefix, False)
    for turn in turns:
        if turn.role not in turn_templates:
            raise BadSampleError(record.key, f"a turn of role {turn.role!r}, which is none of {', '.join(ROLES)}")
        turn_template, is_answer = turn_templates[turn.role], turn.role == "assistant"
        yield from _with_loss(turn_template.prefix, False)
        yield from _with_loss(turn_template.answer_prefix, is_answer)
        for part in turn.parts:
            yield _content(part, is_answer, record.key), is_answer
        yield from _with_loss(turn_template.answer_suffix, is_answer)
        yield from _with_loss(turn_template.suffix, False)


def _with_loss(markup: Markup, in_loss: bool) -> Iterator[_Element]:
    return ((element, in_loss) for element in markup)


def _content(part: ContentPart, is_answer: bool, key: str) -> str | MediaPlaceholder:
    if isinstance(part, TextPart):
        return part.text
    if is_answer and not isinstance(part, ImagePart):
        raise BadSampleError(key, f"the assistant's answer contains {part.content}, which no generator here produces")
    return MediaPlaceholder(part, generated=is_answer)


def _encode_elements(elements: Iterable[_Element], tokenizer: Tokenizer) -> list[ChatElement]:
    """Encodes each run of adjacent markup with the same loss; media stay as they are."""
    encoded: list[ChatElement] = []
    markup: list[MarkupElement] = []
    markup_in_loss = False

    def flush() -> None:
        if token_ids := _encode_markup(markup, tokenizer):
            encoded.append(TokenRun(tuple(token_ids), markup_in_loss))
        markup.clear()

    for element, in_loss in elements:
        if isinstance(element, MediaPlaceholder):
            flush()
            encoded.append(element)
            continue
        if in_loss != markup_in_loss:
            flush()
        markup_in_loss = in_loss
        markup.append(element)
    flush()
    return encoded


def _encode_markup(markup: Iterable[MarkupElement], tokenizer: Tokenizer) -> list[int]:
    token_ids: list[int] = []
    text = ""
    for element in _resolve(markup, tokenizer):
        if isinstance(element, str):
            text += element
        else:
            token_ids += [*tokenizer.encode(text), element]
            text = ""
    return token_ids + tokenizer.encode(text)


def _resolve(markup: Iterable[MarkupElement], tokenizer: Tokenizer) -> list[str | int]:
    """The markup with its tokens replaced by ids; raises DataError for a token that the tokenizer lacks."""
    resolved: list[str | int] = []
    for element in markup:
        match element:
            case SpecialToken(role):
                resolved.append(tokenizer.special_tokens.require(role))
            case ControlToken(name):
                resolved.append(tokenizer.control_token_id(name))
            case _:
                resolved.append(element)
    return resolved
