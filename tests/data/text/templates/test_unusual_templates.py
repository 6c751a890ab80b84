"""Chat templates that end turns in plain text, ask for the date, refuse conversations, or never end."""

import logging

import pytest

from data.datasets.conversations import Conversations
from data.errors import BadSampleError, DataError
from data.records import ImagePart, Media, Record, TextPart, Turn
from data.text.hugging_face_tokenizer import HuggingFaceTokenizer
from data.text.published_template import PublishedTemplate
from data.text.rendering import MediaPlaceholder, render_conversation
from data.text.templates.find_template import find_template
from tests.data.text.tiny_tokenizer import NAMES, byte_level_bpe

pytest.importorskip("jinja2")

TURNS = (
    "{% for turn in messages %}{{ turn.role + ': ' + turn.content + END }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
FILE = byte_level_bpe().to_str()


def own_tokenizer(source):
    return HuggingFaceTokenizer(FILE, NAMES, PublishedTemplate(source, (("eos_token", "<|im_end|>"),)))


def record(*texts):
    roles = ("user", "assistant") * len(texts)
    return Record("r", tuple(Turn(role, (TextPart(text),)) for role, text in zip(roles, texts, strict=False)))


def told(source, conversation):
    """The texts of a conversation, and those in the loss."""
    tokenizer = own_tokenizer(source)
    pieces = render_conversation(conversation, find_template("tokenizer", tokenizer), tokenizer)
    runs = [piece for piece in pieces if not isinstance(piece, MediaPlaceholder)]
    text = "".join(tokenizer.decode(run.ids) for run in runs)
    return text, [tokenizer.decode(run.ids) for run in runs if run.in_loss]


def data_set(source):
    return Conversations("train", tokenizer=own_tokenizer(source), template="tokenizer")


@pytest.mark.parametrize("end", ["\n###\n", "</turn>", "\n"])
def test_plain_text_that_ends_a_turn_is_in_the_loss_and_said_to_be_no_token(end, caplog):
    source = TURNS.replace("END", repr(end))
    text, said = told(source, record("What?", "A house.", "Where?", "In China."))
    assert said == [f"A house.{end}", f"In China.{end}"]
    assert text == f"user: What?{end}assistant: A house.{end}user: Where?{end}assistant: In China.{end}"
    with caplog.at_level(logging.WARNING):
        data_set(source)
    assert "writes no special token at the end of an answer" in caplog.text


def test_a_template_that_ends_answers_by_a_token_is_used_without_a_word(caplog):
    data_set(TURNS.replace("END", "eos_token"))
    assert not caplog.records


@pytest.mark.parametrize(
    ("date", "expected"),
    [
        ("strftime_now('%d %b %Y')", "26 Jul 2024"),
        ("strftime_now('%-d/%m at 100%%')", "26/07 at 100%"),
        ("strftime_now('%Y') if strftime_now is defined else 'no date'", "no date"),
    ],
)
def test_a_date_is_the_same_on_every_day(date, expected):
    source = "{{ 'Today: ' + (DATE) + '. ' }}".replace("DATE", date) + TURNS.replace("END", "eos_token")
    assert told(source, record("What?", "A house."))[0].startswith(f"Today: {expected}. user: What?")


def test_a_date_of_any_width_is_refused():
    with pytest.raises(DataError, match="strftime_now of the format"):
        data_set("{{ strftime_now('%999999999d') }}" + TURNS)


@pytest.mark.parametrize(
    "condition", ["messages[0].role != 'system'", "messages[-1].role == 'user'", "messages | length < 3"]
)
def test_a_template_may_refuse_other_conversations_than_those_of_the_data(condition):
    source = "{% if COND %}{{ raise_exception('No.') }}{% endif %}".replace("COND", condition)
    source += TURNS.replace("END", "eos_token")
    data_set(source)
    turns = (Turn("system", (TextPart("Be kind."),)), *record("What?", "A house.").turns)
    assert told(source, Record("r", turns))[1] == ["A house."]


def test_a_template_that_wants_an_image_places_it():
    source = (
        "{% if messages[-1].role == 'user' %}{{ raise_exception('No.') }}{% endif %}"
        "{% for turn in messages %}{{ turn.role + ': ' }}{% for part in turn.content %}"
        "{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}{% endfor %}"
        "{{ eos_token }}{% endfor %}"
    )
    data_set(source)
    shown = Turn("user", (TextPart("Look: "), ImagePart(Media("a.png"))))
    tokenizer = own_tokenizer(source)
    conversation = Record("r", (shown, Turn("assistant", (TextPart("A house."),))))
    pieces = render_conversation(conversation, find_template("tokenizer", tokenizer), tokenizer)
    assert [type(piece).__name__ for piece in pieces[:2]] == ["TokenRun", "MediaPlaceholder"]


def test_a_template_that_refuses_everything_is_refused():
    with pytest.raises(DataError, match="cannot be used: the tokenizer's chat template refuses it: No"):
        data_set("{{ raise_exception('No') }}")
    with pytest.raises(BadSampleError, match="refuses it: No"):
        told("{{ raise_exception('No') }}", record("What?", "A house."))
