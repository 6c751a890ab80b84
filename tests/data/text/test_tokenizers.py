"""What holds of every tokenizer, and what holds of each."""

import json
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.errors import DataError
from data.text.byte_tokenizer import ByteTokenizer
from data.text.hugging_face_tokenizer import HuggingFaceTokenizer, SpecialTokenNames
from data.text.saved_tokenizer import tokenizer_from_json
from data.text.tokenizer import SpecialTokens, Tokenizer, replace_lone_surrogates
from data.text.word_tokenizer import IMAGE, WordTokenizer
from tests.data.text.tiny_tokenizer import NAMES, SENTENCES, byte_level_bpe, sentence_piece_bpe, tiny, unigram

SENTENCE_PIECE = HuggingFaceTokenizer(
    sentence_piece_bpe().to_str(),
    SpecialTokenNames(pad="<unk>", eos="</s>", bos="<s>", image="<image>", unknown="<unk>"),
)
UNIGRAM = HuggingFaceTokenizer(unigram().to_str(), SpecialTokenNames(pad="<pad>", eos="</s>", unknown="<unk>"))
ALL = {
    "words": WordTokenizer(("a", "blue", "image", "is")),
    "bytes": ByteTokenizer(),
    "byte-level BPE": tiny(),
    "SentencePiece BPE": SENTENCE_PIECE,
    "Unigram": UNIGRAM,
}
every = pytest.mark.parametrize("tokenizer", ALL.values(), ids=ALL)
# Words that are special in one of them, whole and in pieces, among others.
TEXTS = st.one_of(
    st.text(max_size=30),
    st.lists(
        st.sampled_from(
            ["<image>", "</s>", "<s>", "<unk>", "<|im_end|>", "<pad>", "</", "s>", " ", "▁", "<", "is", "\n"]
        ),
        max_size=12,
    ).map("".join),
)


@every
@given(TEXTS)
@settings(max_examples=50, deadline=None)
def test_no_text_spells_a_special_token(tokenizer, text):
    assert isinstance(tokenizer, Tokenizer)
    ids = tokenizer.encode(text)
    assert all(0 <= number < tokenizer.vocabulary_size for number in ids)
    assert not set(ids) & (tokenizer.special_tokens.ids - {tokenizer.special_tokens.unknown})


@pytest.mark.parametrize("name", ["bytes", "byte-level BPE"])
@given(TEXTS)
@settings(max_examples=50, deadline=None)
def test_every_text_survives(name, text):
    assert ALL[name].decode(ALL[name].encode(text)) == replace_lone_surrogates(text)


@pytest.mark.parametrize("text", [*SENTENCES, "", "He  was", "not <image> </s> a chat<s>"])
def test_known_characters_survive_sentence_piece(text):
    assert SENTENCE_PIECE.decode(SENTENCE_PIECE.encode(text)).replace("<unk>", "") == "".join(
        letter for letter in text if letter not in "<>/"
    )


@every
def test_special_tokens_vanish_from_text(tokenizer):
    ids = tokenizer.encode("a")
    special = sorted(tokenizer.special_tokens.ids - {tokenizer.special_tokens.unknown})
    assert tokenizer.decode([*special, *ids, *special]) == tokenizer.decode(ids)


@every
def test_an_id_outside_the_vocabulary_is_refused(tokenizer):
    for number in (-1, tokenizer.vocabulary_size):
        with pytest.raises(DataError, match=f"token id {number} is outside the vocabulary of {tokenizer.vocabulary_size} ids"):
            tokenizer.decode([number])


@every
def test_every_tokenizer_survives_a_checkpoint_and_a_process(tokenizer):
    text = "is <image> a <|im_end|></s> image"
    for copy in (tokenizer_from_json(tokenizer.to_json()), pickle.loads(pickle.dumps(tokenizer))):
        assert copy == tokenizer
        assert copy.special_tokens == tokenizer.special_tokens
        assert copy.encode(text) == tokenizer.encode(text)


@every
def test_a_token_that_it_has_not_is_refused_by_name(tokenizer):
    with pytest.raises(DataError, match="has no special token '<|nothing|>'"):
        tokenizer.control_token_id("<|nothing|>")
    lacking = next(role for role in ("unknown", "audio_end") if getattr(tokenizer.special_tokens, role) is None)
    with pytest.raises(DataError, match=f"no token for '{lacking}'.*TokenNames.{lacking}"):
        tokenizer.special_tokens.require(lacking)


@pytest.mark.parametrize("text", ["", "[]", "3", '{"kind": "runes"}', '{"kind": "hugging_face"}', '{"kind": "bytes"}'])
def test_another_text_is_no_tokenizer(text):
    with pytest.raises(DataError, match="not a tokenizer written by|a tokenizer of kind"):
        tokenizer_from_json(text)


# ---------------------------------------------------------------- special tokens


def test_needed_tokens_are_found_and_shared_ones_refused():
    assert SpecialTokens(pad=0, eos=0, bos=1).require("pad") == 0
    assert SpecialTokens(pad=0, eos=2, bos=1).ids == {0, 1, 2}
    with pytest.raises(DataError, match="eos and image are both token 2"):
        SpecialTokens(pad=0, eos=2, image=2)


def test_the_word_tokenizer_names_its_control_tokens():
    assert ALL["words"].special_tokens.image == IMAGE
    assert ALL["words"].special_tokens.require("answer") == 3


def test_an_unknown_that_nobody_named_may_still_come_of_a_text():
    unnamed = HuggingFaceTokenizer(sentence_piece_bpe().to_str(), SpecialTokenNames(pad="<s>", eos="</s>"))
    assert unnamed.encode("0") == SENTENCE_PIECE.encode("0")
    pieces = HuggingFaceTokenizer(unigram().to_str(), SpecialTokenNames(pad="<pad>", eos="</s>"))
    assert pieces.encode("0") == UNIGRAM.encode("0")


# ---------------------------------------------------------------- bytes


def test_bytes_stand_behind_the_special_tokens():
    tokenizer = ByteTokenizer()
    assert tokenizer.vocabulary_size == 11 + 256
    assert tokenizer.encode("aé") == [11 + 97, 11 + 0xC3, 11 + 0xA9]
    assert tokenizer.decode([11 + 0xC3]) == "\ufffd"


def test_a_surrogate_alone_is_replaced_and_a_pair_is_joined():
    assert replace_lone_surrogates("a\ud83db") == "a\ufffdb"
    assert replace_lone_surrogates("\ud83d\ude00") == "😀"
    for tokenizer in ALL.values():
        assert tokenizer.encode("a\udc00") == tokenizer.encode("a\ufffd")


# ---------------------------------------------------------------- files of the package tokenizers


def test_nothing_is_added_cut_or_padded():
    tokenizer = tiny()
    assert len(tokenizer.encode(SENTENCES[2])) > 16
    assert tokenizer.encode("") == []
    assert tokenizer.special_tokens.bos not in tokenizer.encode("A chat")


def test_the_ids_are_those_of_the_package():
    model = byte_level_bpe()
    model.no_truncation()
    model.no_padding()
    for sentence in SENTENCES:
        assert tiny().encode(sentence) == model.encode(sentence, add_special_tokens=False).ids
    assert tiny().special_tokens.image == model.token_to_id("<image>")
    assert tiny().control_token_id("<|start_header_id|>") == model.token_to_id("<|start_header_id|>")
    assert tiny().vocabulary_size == model.get_vocab_size()


def test_a_first_space_is_not_doubled():
    assert SENTENCE_PIECE.encode(" was") == SENTENCE_PIECE.encode("was")
    assert tiny().encode(" was") != tiny().encode("was")


def test_a_word_of_the_vocabulary_that_is_special_is_spelt_in_pieces():
    pieces = [unigram().token_to_id(piece) for piece in ("▁", "a", "<", "/", "s", ">")]
    assert unigram().token_to_id("</s>") in unigram().encode("a</s>").ids
    assert [number for number in UNIGRAM.encode("a</s>") if number != pieces[0]] == pieces[1:]


@pytest.mark.parametrize("role", ["pad", "image", "unknown"])
def test_a_file_that_lacks_a_token_is_refused_at_start(tmp_path, role):
    path = tmp_path / "tokenizer.json"
    path.write_text(byte_level_bpe().to_str())
    names = {"pad": "<|endoftext|>", "eos": "<|im_end|>", role: "<|nowhere|>"}
    with pytest.raises(DataError, match=rf"tokenizer.json: .*no token '<\|nowhere\|>', which TokenNames.{role} names"):
        HuggingFaceTokenizer.from_file(path, SpecialTokenNames(**names))
    names[role] = "<|eot_id|>"
    assert HuggingFaceTokenizer.from_file(path, SpecialTokenNames(**names)).special_tokens.eos == 2


def test_two_roles_of_one_token_are_refused_at_start():
    with pytest.raises(DataError, match="are both token"):
        HuggingFaceTokenizer(
            byte_level_bpe().to_str(), SpecialTokenNames(pad="<image>", eos="<image>", image="<image>")
        )


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"added_tokens": 3}', '{"model": {"type": "BPE"}}'])
def test_a_file_that_is_no_tokenizer_is_refused(tmp_path, content):
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with pytest.raises(DataError, match="tokenizer.json: not a file of the package tokenizers"):
        HuggingFaceTokenizer.from_file(path, NAMES)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"gone\.json: .*No such file"):
        HuggingFaceTokenizer.from_file(tmp_path / "gone.json", NAMES)


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_a_damaged_file_is_refused_or_used(data):
    fields = json.loads(byte_level_bpe().to_str())
    path = [data.draw(st.sampled_from(sorted(fields)))]
    fields[path[0]] = data.draw(st.sampled_from([None, 3, "x", [], {}, [{}], {"type": "x"}]))
    try:
        tokenizer = HuggingFaceTokenizer(json.dumps(fields), NAMES)
    except DataError as error:
        assert str(error)
    else:
        assert tokenizer.vocabulary_size > 0


def test_bytes_of_this_version_only():
    with pytest.raises(DataError, match="not a tokenizer written by this version"):
        ByteTokenizer.from_json(ByteTokenizer().to_json().replace("10", "99"))
