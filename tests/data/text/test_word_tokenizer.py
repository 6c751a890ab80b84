import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.errors import DataError
from data.text.word_tokenizer import BOS, EOS, IMAGE, PAD, SPECIAL_TOKENS, UNKNOWN, WordTokenizer, split_words

TOKENIZER = WordTokenizer(("?", "blue", "image", "is", "it"))


def test_special_tokens_come_first_and_padding_is_zero():
    assert PAD == 0
    assert [SPECIAL_TOKENS[number] for number in (PAD, BOS, EOS, IMAGE)] == ["<pad>", "<bos>", "<eos>", "<image>"]
    assert TOKENIZER.vocabulary_size == 7 + 5


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("", []),
        ("is it blue?", [10, 11, 8, 7]),
        ("  IS\tit   Blue ?\n", [10, 11, 8, 7]),
        ("it isn't", [11, UNKNOWN, UNKNOWN, UNKNOWN]),
        ("<image>", [UNKNOWN, 9, UNKNOWN]),
        ("??", [7, 7]),
    ],
)
def test_encode(text, ids):
    assert TOKENIZER.encode(text) == ids


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        ([], ""),
        ([BOS, 10, 11, 8, 7, EOS, PAD], "is it blue?"),
        ([UNKNOWN, 8], "<unknown> blue"),
    ],
)
def test_decode(ids, text):
    assert TOKENIZER.decode(ids) == text


@pytest.mark.parametrize("number", [-1, 12])
def test_decode_refuses_an_id_outside_the_vocabulary(number):
    with pytest.raises(DataError, match=f"token id {number} is outside the vocabulary of 12"):
        TOKENIZER.decode([number])


def test_unknown_words_are_named_once_in_order():
    assert TOKENIZER.unknown_words("Is the cat blue, the dog?") == ("the", "cat", ",", "dog")


@given(st.lists(st.sampled_from(TOKENIZER.words), max_size=12))
@settings(max_examples=50, deadline=None)
def test_known_words_are_decoded_again(words):
    ids = TOKENIZER.encode(" ".join(words))
    assert TOKENIZER.encode(TOKENIZER.decode(ids)) == ids
    assert UNKNOWN not in ids


@given(st.text(max_size=40))
@settings(max_examples=50, deadline=None)
def test_every_word_of_any_text_becomes_one_id(text):
    assert len(TOKENIZER.encode(text)) == len(split_words(text))
    assert all(len(SPECIAL_TOKENS) <= number or number == UNKNOWN for number in TOKENIZER.encode(text))


def test_json_round_trip():
    assert WordTokenizer.from_json(TOKENIZER.to_json()) == TOKENIZER


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"kind": "words", "special_tokens": 3, "words": []}'])
def test_other_json_is_refused(text):
    with pytest.raises(DataError, match="not a tokenizer written by|the tokenizer is not JSON"):
        WordTokenizer.from_json(text)


def test_json_with_other_special_tokens_is_refused():
    with pytest.raises(DataError, match="<pod>"):
        WordTokenizer.from_json(TOKENIZER.to_json().replace("<pad>", "<pod>"))


@pytest.mark.parametrize(
    ("words", "message"),
    [(("a", "b", "a"), "a is repeated"), (("two words",), "'two words'"), (("Big",), "'Big'"), (("",), "''")],
)
def test_invalid_vocabularies_are_refused(words, message):
    with pytest.raises(DataError, match=message):
        WordTokenizer(words)


def test_the_audio_token_follows_the_words():
    hearing = WordTokenizer(TOKENIZER.words, has_audio_token=True)
    assert (hearing.vocabulary_size, hearing.special_tokens.audio, TOKENIZER.special_tokens.audio) == (13, 12, None)
    assert hearing.encode("is it blue?") == TOKENIZER.encode("is it blue?")
    assert hearing.decode([10, 12, 11]) == "is it"
    assert WordTokenizer.from_json(hearing.to_json()) == hearing
