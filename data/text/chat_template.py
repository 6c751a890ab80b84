"""Chat templates: how a conversation becomes a run of tokens and media, and which of them the model must predict."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator

from data.errors import BadSampleError
from data.records import ROLES, AudioPart, ContentPart, ImagePart, Record, TextPart, Turn
from data.text.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class SpecialToken:
    """The special token of that role (a field of `SpecialTokens`)."""

    role: str


@dataclasses.dataclass(frozen=True)
class ControlToken:
    """The token of that spelling, which the tokenizer's file must hold."""

    name: str


Markup = tuple[str | SpecialToken | ControlToken, ...]


@dataclasses.dataclass(frozen=True)
class TurnTemplate:
    """What stands around the parts of a turn.

    Attributes:
        before, after: Given to the model, never in the loss.
        opening, closing: In the loss if the turn's texts are: the model must begin and end an answer itself.
    """

    before: Markup = ()
    opening: Markup = ()
    closing: Markup = ()
    after: Markup = ()


@dataclasses.dataclass(frozen=True)
class ChatTemplate:
    """How turns are wrapped, by role; the loss is on the assistant's turns alone.

    Attributes:
        system, user, assistant: Around their turns.
        begins: What a conversation begins with.
        prompt: The system's text of a conversation that has no turn of the system; none where empty.
    """

    system: TurnTemplate
    user: TurnTemplate
    assistant: TurnTemplate
    prefix: Markup = (SpecialToken("bos"),)
    default_system_prompt: str = ""

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Raises DataError, before any sample is read, if the tokenizer lacks a token that the template spells."""
        for wrapping in (TurnTemplate(self.prefix), self.system, self.user, self.assistant):
            _resolved(wrapping.before + wrapping.opening + wrapping.closing + wrapping.after, tokenizer)

    def end_token(self, tokenizer: Tokenizer) -> int:
        """The token that ends an answer."""
        return next(token for token in _resolved(self.assistant.closing, tokenizer) if isinstance(token, int))


@dataclasses.dataclass(frozen=True)
class TokenRun:
    """Adjacent tokens.

    Attributes:
        ids: At least one.
        in_loss: Whether the model must predict them.
    """

    ids: tuple[int, ...]
    in_loss: bool


@dataclasses.dataclass(frozen=True)
class MediaPlaceholder:
    """A picture or clip between tokens.

    Attributes:
        part: What it is.
        generated: Whether the model must draw it; else it sees or hears it.
    """

    part: ImagePart | AudioPart
    generated: bool


ChatElement = TokenRun | MediaPlaceholder

# As they are: captions, transcripts, interleaved documents.
PLAIN = ChatTemplate(TurnTemplate(), TurnTemplate(), TurnTemplate(closing=(SpecialToken("eos"),)))

# `<bos> question <answer> answer <eos>`, as `data.datasets.easy_vqa_samples` lays questions out.
QUESTION = dataclasses.replace(PLAIN, user=TurnTemplate(after=(SpecialToken("answer"),)))

# Vicuna 1.1, of LLaVA-1.5 (arXiv 2310.03744), which begins with a system prompt of its own: set `prompt` to it to
# continue from its weights.
VICUNA = ChatTemplate(
    system=TurnTemplate(after=(" ",)),
    user=TurnTemplate(before=("USER: ",), after=(" ",)),
    assistant=TurnTemplate(before=("ASSISTANT:",), opening=(" ",), closing=(SpecialToken("eos"),)),
)


def _headed(role: str) -> TurnTemplate:
    header = (ControlToken("<|start_header_id|>"), role, ControlToken("<|end_header_id|>"), "\n\n")
    return TurnTemplate(before=header, closing=(ControlToken("<|eot_id|>"),))


# Llama 3 (arXiv 2407.21783); its bos is <|begin_of_text|>.
LLAMA3 = ChatTemplate(*map(_headed, ROLES))


def _marked(role: str) -> TurnTemplate:
    return TurnTemplate(
        before=(ControlToken("<|im_start|>"), f"{role}\n"), closing=(ControlToken("<|im_end|>"),), after=("\n",)
    )


# ChatML of Qwen (arXiv 2309.16609), without a bos, and of InternLM2 (arXiv 2403.17297), with one.
CHATML = ChatTemplate(*map(_marked, ROLES), prefix=())
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
    """The conversation as it is trained on: loss on the assistant's texts and their ends, and on nothing else.

    Texts that touch are encoded as one, across the turns too, so that a word is cut as in plain text; but the start of
    the loss always cuts, because that is where generation begins.

    Raises:
        BadSampleError: A turn of an unknown role, or a clip of the assistant.
        DataError: The tokenizer lacks a token that the template spells.
    """
    return _pieces(_conversation(record, template), tokenizer)


def render_prompt(record: Record, template: ChatTemplate, tokenizer: Tokenizer) -> list[ChatElement]:
    """The conversation up to where the assistant answers next: what `render` gives of it before that answer."""
    said = _conversation(record, template)
    return _pieces(itertools.chain(said, _in(template.assistant.before, False)), tokenizer)


_Element = tuple[str | SpecialToken | ControlToken | MediaPlaceholder, bool]


def _conversation(record: Record, template: ChatTemplate) -> Iterator[_Element]:
    """What stands in the conversation, one after the other, and whether it is in the loss."""
    turns = record.turns
    if template.default_system_prompt and not any(turn.role == "system" for turn in turns):
        turns = (Turn("system", (TextPart(template.default_system_prompt),)), *turns)
    wrappings = dict(zip(ROLES, (template.system, template.user, template.assistant), strict=True))
    yield from _in(template.prefix, False)
    for turn in turns:
        if turn.role not in wrappings:
            raise BadSampleError(record.key, f"a turn of role {turn.role!r}, which is none of {', '.join(ROLES)}")
        wrapping, answered = wrappings[turn.role], turn.role == "assistant"
        yield from _in(wrapping.before, False)
        yield from _in(wrapping.opening, answered)
        for part in turn.parts:
            yield _content(part, answered, record.key), answered
        yield from _in(wrapping.closing, answered)
        yield from _in(wrapping.after, False)


def _in(markup: Markup, in_loss: bool) -> Iterator[_Element]:
    return ((element, in_loss) for element in markup)


def _content(part: ContentPart, answered: bool, key: str) -> str | MediaPlaceholder:
    if isinstance(part, TextPart):
        return part.text
    if answered and isinstance(part, AudioPart):
        raise BadSampleError(key, "the assistant says a clip, and no model here generates sound")
    return MediaPlaceholder(part, generated=answered)


def _pieces(elements: Iterable[_Element], tokenizer: Tokenizer) -> list[ChatElement]:
    pieces: list[ChatElement] = []
    for (is_media, in_loss), group in itertools.groupby(elements, lambda each: (_is_media(each[0]), each[1])):
        content = [element for element, _ in group]
        if is_media:
            pieces += content
        elif ids := _encoded(content, tokenizer):
            pieces.append(TokenRun(tuple(ids), in_loss))
    return pieces


def _is_media(element: str | SpecialToken | ControlToken | MediaPlaceholder) -> bool:
    return isinstance(element, MediaPlaceholder)


def _encoded(markup: Iterable[str | SpecialToken | ControlToken], tokenizer: Tokenizer) -> list[int]:
    ids: list[int] = []
    text = ""
    for element in _resolved(markup, tokenizer):
        if isinstance(element, str):
            text += element
        else:
            ids += [*tokenizer.encode(text), element]
            text = ""
    return ids + tokenizer.encode(text)


def _resolved(markup: Iterable[str | SpecialToken | ControlToken], tokenizer: Tokenizer) -> list[str | int]:
    """The markup with its tokens looked up; raises DataError for one that the tokenizer lacks."""
    found: list[str | int] = []
    for element in markup:
        match element:
            case SpecialToken(role):
                found.append(tokenizer.special_tokens.require(role))
            case ControlToken(name):
                found.append(tokenizer.control_token_id(name))
            case _:
                found.append(element)
    return found
