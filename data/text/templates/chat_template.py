"""Chat templates of mmjax: the markup around the turns of a conversation."""

import dataclasses
from collections.abc import Iterator

from data.errors import BadSampleError
from data.records import ROLES, ContentPart, ImagePart, MediaPart, Record, TextPart, Turn
from data.text.rendering import (
    ControlToken,
    Element,
    Markup,
    MediaPlaceholder,
    SpecialToken,
    resolve_markup,
)
from data.text.tokenizer import Tokenizer


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
        """The whole markup in order."""
        return self.prefix + self.answer_prefix + self.answer_suffix + self.suffix


@dataclasses.dataclass(frozen=True)
class ChatTemplate:
    """The markup of a conversation; the loss covers the assistant's turns only.

    Attributes:
        system, user, assistant: Templates of the turns of each role.
        prefix: Begins a conversation.
        default_system_prompt: Text of the system where a conversation has no system turn; none where empty.
        media_first: Whether the media of the input precede the prefix, wherever they are in its turns.
    """

    system: TurnTemplate
    user: TurnTemplate
    assistant: TurnTemplate
    prefix: Markup = (SpecialToken("bos"),)
    default_system_prompt: str = ""
    media_first: bool = False

    def conversation(self, record: Record, tokenizer: Tokenizer) -> Iterator[Element]:
        """The elements of a training sample in order; errors as of `ConversationTemplate.conversation`."""
        turns = record.turns
        if self.default_system_prompt and not any(turn.role == "system" for turn in turns):
            turns = (Turn("system", (TextPart(self.default_system_prompt),)), *turns)
        if self.media_first:
            media, turns = _media_apart(turns)
            yield from ((MediaPlaceholder(part, generated=False), False) for part in media)
        turn_templates = dict(zip(ROLES, (self.system, self.user, self.assistant), strict=True))
        yield from _with_loss(self.prefix, False)
        for turn in turns:
            if turn.role not in turn_templates:
                raise BadSampleError(record.key, f"a turn of role {turn.role!r}, which is none of {', '.join(ROLES)}")
            turn_template, is_answer = turn_templates[turn.role], turn.role == "assistant"
            yield from _with_loss(turn_template.prefix, False)
            yield from _with_loss(turn_template.answer_prefix, is_answer)
            for part in turn.parts:
                yield turn_content(part, is_answer, record.key), is_answer
            yield from _with_loss(turn_template.answer_suffix, is_answer)
            yield from _with_loss(turn_template.suffix, False)

    def prompt(self, record: Record, tokenizer: Tokenizer) -> Iterator[Element]:
        """The elements of the conversation and of the markup before an answer; errors as of `conversation`."""
        yield from self.conversation(record, tokenizer)
        yield from _with_loss(self.assistant.prefix, False)

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Raises DataError, before any sample is read, if the tokenizer lacks a token that the template spells."""
        for markup in (self.prefix, self.system.markup, self.user.markup, self.assistant.markup):
            resolve_markup(markup, tokenizer)

    def end_token(self, tokenizer: Tokenizer) -> int:
        """The id of the token that ends an answer."""
        return next(
            element for element in resolve_markup(self.assistant.answer_suffix, tokenizer) if isinstance(element, int)
        )


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

# PaliGemma (arXiv 2407.07726): images, then bos, the prompt and a line break; the answer follows at once.
PALIGEMMA = dataclasses.replace(PLAIN, user=TurnTemplate(suffix=("\n",)), media_first=True)

CHAT_TEMPLATES = {
    "plain": PLAIN,
    "question": QUESTION,
    "vicuna": VICUNA,
    "llama3": LLAMA3,
    "chatml": CHATML,
    "internlm2": INTERNLM2,
    "paligemma": PALIGEMMA,
}


def _media_apart(turns: tuple[Turn, ...]) -> tuple[list[MediaPart], list[Turn]]:
    """The media of all turns but the assistant's, and the turns without them."""
    media: list[MediaPart] = []
    texts: list[Turn] = []
    for turn in turns:
        if turn.role == "assistant":
            texts.append(turn)
            continue
        media += [part for part in turn.parts if not isinstance(part, TextPart)]
        texts.append(Turn(turn.role, tuple(part for part in turn.parts if isinstance(part, TextPart))))
    return media, texts


def _with_loss(markup: Markup, in_loss: bool) -> Iterator[Element]:
    return ((element, in_loss) for element in markup)


def turn_content(part: ContentPart, is_answer: bool, key: str) -> str | MediaPlaceholder:
    """A part of a turn as an element; raises BadSampleError for a medium in an answer that is no image."""
    if isinstance(part, TextPart):
        return part.text
    if is_answer and not isinstance(part, ImagePart):
        raise BadSampleError(key, f"the assistant's answer contains {part.content}, which no generator here produces")
    return MediaPlaceholder(part, generated=is_answer)
