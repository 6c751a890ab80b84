"""A published tokenizer's own chat template: which stretches of its output are text, media, or in the loss.

The template is rendered with marks in the place of texts and media. So no text can spell a token of the template, and
the place of every answer is known without knowing the template.
"""

import dataclasses
import functools
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from data.errors import BadSampleError, DataError
from data.records import MEDIA_PARTS, ImagePart, Media, MediaPart, Record, TextPart, Turn
from data.text.published_template import PublishedTemplate
from data.text.rendering import ControlToken, Element, MarkupElement, MediaPlaceholder
from data.text.templates.jinja_environment import (
    SAID_BEGINS,
    SAID_ENDS,
    TemplateLimitError,
    TemplateRefusalError,
    render,
)
from data.text.templates.marked_content import MARK, Marked, mark_turns, plain_turns, without_leading_breaks
from data.text.tokenizer import Tokenizer

_LOG = logging.getLogger(__name__)

Messages = Sequence[Mapping[str, Any]]
Span = tuple[int, int]
"""First and last character of a stretch of a rendered text, the last excluded."""


@dataclasses.dataclass(frozen=True)
class JinjaTemplate:
    """A chat template (`data.text.rendering.ConversationTemplate`) of a published tokenizer.

    The loss covers the text within `{% generation %}`; in templates without it, each answer from the end of the
    prompt for it to the first special token behind it, or to the end of the turn where there is none.

    Attributes:
        published: The template.
        control_tokens: By the name of each special token of the tokenizer, a regular expression of the characters that
            it matches: some match the white space beside them too.
    """

    published: PublishedTemplate
    control_tokens: Mapping[str, str]

    def conversation(self, record: Record, tokenizer: Tokenizer) -> Iterator[Element]:
        """The elements of a training sample in order.

        Raises:
            BadSampleError: The template refuses the conversation, or lays it out by the words of its texts, or gives
                media no place.
        """
        marked, text = self._marked_text(record, False)
        return self._elements(record, marked, text, self._answers(marked, text))

    def prompt(self, record: Record, tokenizer: Tokenizer) -> Iterator[Element]:
        """The elements of the conversation up to the assistant's next answer; errors as of `conversation`."""
        marked, text = self._marked_text(record, True)
        return self._elements(record, marked, text, [])

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Raises DataError if the template cannot be read, or does not lay out a question and its answer.

        A warning says if nothing in the loss is a special token, so that a model does not learn to end an answer.
        """
        if self._written_end_token(tokenizer) is None:
            _LOG.warning(
                "the tokenizer's chat template writes no special token at the end of an answer that is in the loss: "
                "the model learns the plain text that ends a turn, and not to stop there; use a template of mmjax, or "
                "write eos_token behind answers in chat_template.jinja"
            )

    def end_token(self, tokenizer: Tokenizer) -> int:
        """The id of the special token that ends an answer; the tokenizer's `eos` where the template writes none."""
        written = self._written_end_token(tokenizer)
        return tokenizer.special_tokens.eos if written is None else written

    def _written_end_token(self, tokenizer: Tokenizer) -> int | None:
        """The id of the special token that the template writes at the end of an answer, in the loss.

        Some templates refuse a question and its answer that do not follow a system turn, or without an image.
        """
        system, answer = Turn("system", (TextPart("s"),)), Turn("assistant", (TextPart("b"),))
        asked, shown = Turn("user", (TextPart("a"),)), Turn("user", (ImagePart(Media("image")), TextPart("a")))
        first: BadSampleError | None = None
        for turns in ((asked, answer), (system, asked, answer), (shown, answer), (system, shown, answer)):
            try:
                elements = [*self.conversation(Record("a question and its answer", turns), tokenizer)]
            except BadSampleError as error:
                first = first or error
                if isinstance(error.__cause__, TemplateLimitError):
                    break  # others would take as long
                continue
            said = [element for element, in_loss in elements if in_loss and isinstance(element, ControlToken)]
            return tokenizer.control_token_id(said[-1].name) if said else None
        assert first is not None, "a conversation is laid out or refused"
        raise DataError(f"the tokenizer's chat template cannot be used: {first.reason}") from first

    def _marked_text(self, record: Record, generation_prompt: bool) -> tuple[Marked, str]:
        """The marks of a record, and the text that the template renders from them."""
        try:
            shape = (self._places, self._takes_lists)
            expected = self._render(plain_turns(record, *shape), generation_prompt)
            # Some templates strip line breaks of answers, and no other white space.
            for variant in (record, without_leading_breaks(record)):
                marked = mark_turns(variant, *shape)
                text = self._render(marked.messages, generation_prompt)
                if marked.filled(text) == expected:
                    return marked, text
        except TemplateRefusalError as error:
            raise BadSampleError(record.key, f"the tokenizer's chat template refuses it: {error}") from error
        raise BadSampleError(
            record.key,
            "the tokenizer's chat template lays it out by what its texts say, which cannot be followed; set "
            "Conversations.template to a template of mmjax",
        )

    def _render(self, messages: Messages, generation_prompt: bool) -> str:
        return render(self.published.source, dict(self.published.variables), messages, generation_prompt)

    @functools.cached_property
    def _takes_lists(self) -> bool:
        """Whether the content of a message may be a list of parts."""
        text = self._of_user({}, TextPart("a"))
        return len(MARK.findall(text)) == 1 and not re.search("[\"']type[\"']", text)

    @functools.cached_property
    def _places(self) -> dict[str, str]:
        """By kind of media that the template places, the special tokens that the template writes for a medium."""
        return {kind: place for kind in MEDIA_PARTS if self._takes_lists and (place := self._place_of(kind))}

    def _place_of(self, kind: str) -> str:
        """The special tokens that the template writes for a medium before a text; empty for none."""
        medium = MEDIA_PARTS[kind](Media(kind))
        text, without = self._of_user({kind: ""}, medium, TextPart("a")), self._of_user({}, TextPart("a"))
        match = MARK.search(text)
        begins = next((at for at, (one, other) in enumerate(zip(text, without, strict=False)) if one != other), None)
        if match is None or begins is None:
            return ""
        places = re.findall(f"(?:{self._names})+", text[begins : match.start()]) if self.control_tokens else []
        return places[0] if len(places) == 1 else ""

    def _of_user(self, places: Mapping[str, str], *parts: TextPart | MediaPart) -> str:
        """The template's text for a user's turn of these parts; empty if the template refuses it.

        Other turns are added if it refuses the turn alone. Only the given parts have marks.
        """
        asked = mark_turns(Record("", (Turn("user", parts),)), places, True).messages
        system, answer = (
            [{"role": role, "content": [{"type": "text", "text": "a"}]}] for role in ("system", "assistant")
        )
        for messages in (asked, [*asked, *answer], [*system, *asked], [*system, *asked, *answer]):
            try:
                return self._render(messages, False)
            except TemplateLimitError:
                raise
            except TemplateRefusalError:
                continue
        return ""

    @functools.cached_property
    def _names(self) -> str:
        """A regular expression of the special tokens' names, longer ones first."""
        return "|".join(re.escape(name) for name in sorted(self.control_tokens, key=len, reverse=True))

    @functools.cached_property
    def _pieces(self) -> re.Pattern[str]:
        """A regular expression of the marks, signs and special tokens in a rendered text."""
        places = sorted(set(self._places.values()), key=len, reverse=True)
        tokens = [self.control_tokens[name] for name in sorted(self.control_tokens, key=len, reverse=True)]
        kinds = {
            "place": "|".join(map(re.escape, places)) or "(?!)",
            "mark": MARK.pattern.replace("(", "(?:"),
            "token": "|".join(tokens) or "(?!)",
            "sign": f"{SAID_BEGINS}|{SAID_ENDS}",
        }
        return re.compile("|".join(f"(?P<{kind}>{pattern})" for kind, pattern in kinds.items()))

    def _answers(self, marked: Marked, text: str) -> list[Span]:
        """The stretches of the text that are in the loss."""
        if SAID_BEGINS in text:
            return [match.span() for match in re.finditer(f"{SAID_BEGINS}[^{SAID_ENDS}]*{SAID_ENDS}", text)]
        matches = [*MARK.finditer(text)]
        spans: list[Span] = []
        for number, message in enumerate(marked.messages):
            turn_matches = [at for at, match in enumerate(matches) if marked.turns[int(match[2])] == number]
            if message["role"] == "assistant" and turn_matches:
                begins = matches[turn_matches[0] - 1].end() if turn_matches[0] else 0
                ends = matches[turn_matches[-1] + 1].start() if turn_matches[-1] + 1 < len(matches) else len(text)
                prompt = self._prompt_tail(marked.messages[:number])
                led = text.startswith(prompt, begins) and begins + len(prompt) <= matches[turn_matches[0]].start()
                behind = matches[turn_matches[-1]].end()
                tokens = (piece for piece in self._pieces.finditer(text, behind, ends) if piece["token"])
                end = next(tokens, None)
                start = begins + len(prompt) if led and prompt else matches[turn_matches[0]].start()
                spans.append((start, end.end() if end else behind + self._turn_end(marked, number, text[behind:ends])))
        return spans

    def _prompt_tail(self, messages: Messages) -> str:
        """The prompt for the next answer from the end of its last text on; empty if there is none."""
        try:
            text = self._render(messages, True) if messages else ""
        except TemplateRefusalError:
            return ""
        return text[max((match.end() for match in MARK.finditer(text)), default=0) :]

    def _turn_end(self, marked: Marked, number: int, rest: str) -> int:
        """Length of the plain text that ends a turn: a conversation up to that turn has it behind its last text."""
        try:
            text = self._render(marked.messages[: number + 1], False)
        except TemplateRefusalError:
            return 0
        end = text[max((match.end() for match in MARK.finditer(text)), default=len(text)) :]
        return len(end) if rest.startswith(end) else 0

    def _elements(self, record: Record, marked: Marked, text: str, answers: Sequence[Span]) -> Iterator[Element]:
        """The rendered text as elements; texts are divided where the loss begins or ends."""
        waiting = list(reversed(marked.media))
        elements: list[Element] = []

        def add(element: MarkupElement | MediaPlaceholder, start: int, end: int) -> None:
            elements.append((element, any(first <= start and end <= last for first, last in answers)))

        def add_text(start: int, end: int) -> None:
            cuts = sorted({start, end, *(cut for span in answers for cut in span if start < cut < end)})
            for first, last in zip(cuts, cuts[1:], strict=False):
                add(text[first:last], first, last)

        behind = places = 0
        for piece in self._pieces.finditer(text):
            add_text(behind, piece.start())
            behind = piece.end()
            if piece["place"]:
                places += 1
                if waiting:
                    add(MediaPlaceholder(waiting.pop(), generated=False), *piece.span())
            elif piece["mark"]:
                match = MARK.fullmatch(piece["mark"])
                assert match is not None, "it was matched as a mark"
                part, role = marked.text_of(match), marked.messages[marked.turns[int(match[2])]]["role"]
                content = part.text if isinstance(part, TextPart) else MediaPlaceholder(part, role == "assistant")
                add(content, *piece.span())
            elif piece["token"]:
                add(ControlToken(piece["token"].strip()), *piece.span())
        add_text(behind, len(text))
        if places != len(marked.media):
            raise BadSampleError(
                record.key,
                f"the tokenizer's chat template writes {places} places for its {len(marked.media)} images and clips",
            )
        return iter(elements)
