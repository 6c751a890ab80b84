"""Properties of every tokenizer, and of each kind."""

import base64
import json
import pickle
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.errors import DataError
from data.text.byte_tokenizer import ByteTokenizer
from data.text.hugging_face_tokenizer import HuggingFaceTokenizer, SpecialTokenNames
from data.text.published_template import read_published_template
from data.text.tokenizer import SpecialTokens, Tokenizer, replace_lone_surrogates, tokenizer_from_json
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
def test_every_text_is_decoded_again(name, text):
    assert ALL[name].decode(ALL[name].encode(text)) == replace_lone_surrogates(text)


@pytest.mark.parametrize("text", [*SENTENCES, "", "He  was", "not <image> </s> a chat<s>"])
def test_sentence_piece_decodes_known_characters(text):
    assert SENTENCE_PIECE.decode(SENTENCE_PIECE.encode(text)).replace("<unk>", "") == "".join(
        letter for letter in text if letter not in "<>/"
    )


@every
def test_decoding_drops_special_tokens(tokenizer):
    ids = tokenizer.encode("a")
    special = sorted(tokenizer.special_tokens.ids - {tokenizer.special_tokens.unknown})
    assert tokenizer.decode([*special, *ids, *special]) == tokenizer.decode(ids)


@every
def test_tokens_that_no_text_becomes_have_names_and_no_others(tokenizer):
    special = tokenizer.special_tokens
    for token_id in special.ids:
        assert tokenizer.special_name(token_id), token_id
    names = [tokenizer.special_name(token_id) for token_id in special.ids]
    assert len(set(names)) == len(names)
    text = tokenizer.encode("what is in the picture?")
    assert {tokenizer.special_name(token_id) for token_id in text if token_id != special.unknown} == {None}


@every
def test_ids_outside_the_vocabulary_are_refused(tokenizer):
    for number in (-1, tokenizer.vocabulary_size):
        with pytest.raises(
            DataError, match=f"token id {number} is outside the vocabulary of {tokenizer.vocabulary_size} ids"
        ):
            tokenizer.decode([number])


@every
def test_every_tokenizer_survives_json_and_pickle(tokenizer):
    text = "is <image> a <|im_end|></s> image"
    for copy in (tokenizer_from_json(tokenizer.to_json()), pickle.loads(pickle.dumps(tokenizer))):
        assert copy == tokenizer
        assert copy.special_tokens == tokenizer.special_tokens
        assert copy.encode(text) == tokenizer.encode(text)


@every
def test_missing_tokens_are_named(tokenizer):
    with pytest.raises(DataError, match="has no special token '<|nothing|>'"):
        tokenizer.control_token_id("<|nothing|>")
    lacking = next(role for role in ("unknown", "audio_end") if getattr(tokenizer.special_tokens, role) is None)
    with pytest.raises(DataError, match=f"no token for '{lacking}'.*SpecialTokenNames.{lacking}"):
        tokenizer.special_tokens.require(lacking)


@pytest.mark.parametrize("text", ["", "[]", "3", '{"kind": "runes"}', '{"kind": "hugging_face"}', '{"kind": "bytes"}'])
def test_other_texts_are_refused(text):
    with pytest.raises(DataError, match="not a tokenizer written by|a tokenizer of kind|the tokenizer is not JSON"):
        tokenizer_from_json(text)


# ---------------------------------------------------------------- special tokens


def test_required_tokens_are_returned_and_shared_ids_refused():
    assert SpecialTokens(pad=0, eos=0, bos=1).require("pad") == 0
    assert SpecialTokens(pad=0, eos=2, bos=1).ids == {0, 1, 2}
    with pytest.raises(DataError, match="eos and image are both token 2"):
        SpecialTokens(pad=0, eos=2, image=2)


def test_special_tokens_of_the_word_tokenizer():
    assert ALL["words"].special_tokens.image == IMAGE
    assert ALL["words"].special_tokens.require("answer") == 3


def test_an_unnamed_unknown_token_may_result_from_a_text():
    unnamed = HuggingFaceTokenizer(sentence_piece_bpe().to_str(), SpecialTokenNames(pad="<s>", eos="</s>"))
    assert unnamed.encode("0") == SENTENCE_PIECE.encode("0")
    pieces = HuggingFaceTokenizer(unigram().to_str(), SpecialTokenNames(pad="<pad>", eos="</s>"))
    assert pieces.encode("0") == UNIGRAM.encode("0")


# ---------------------------------------------------------------- bytes


def test_byte_ids_follow_the_special_tokens():
    tokenizer = ByteTokenizer()
    assert tokenizer.vocabulary_size == 11 + 256
    assert tokenizer.encode("aé") == [11 + 97, 11 + 0xC3, 11 + 0xA9]
    assert tokenizer.decode([11 + 0xC3]) == "\ufffd"


def test_lone_surrogates_are_replaced_and_pairs_are_joined():
    assert replace_lone_surrogates("a\ud83db") == "a\ufffdb"
    assert replace_lone_surrogates("\ud83d\ude00") == "😀"
    for tokenizer in ALL.values():
        assert tokenizer.encode("a\udc00") == tokenizer.encode("a\ufffd")


# ---------------------------------------------------------------- files of the package tokenizers


def test_nothing_is_added_truncated_or_padded():
    tokenizer = tiny()
    assert len(tokenizer.encode(SENTENCES[2])) > 16
    assert tokenizer.encode("") == []
    assert tokenizer.special_tokens.bos not in tokenizer.encode("A chat")


def test_ids_are_those_of_the_tokenizers_package():
    model = byte_level_bpe()
    model.no_truncation()
    model.no_padding()
    for sentence in SENTENCES:
        assert tiny().encode(sentence) == model.encode(sentence, add_special_tokens=False).ids
    assert tiny().special_tokens.image == model.token_to_id("<image>")
    assert tiny().control_token_id("<|start_header_id|>") == model.token_to_id("<|start_header_id|>")
    assert tiny().vocabulary_size == model.get_vocab_size()


def test_a_leading_space_is_kept_behind_the_space_that_is_put_before_a_text():
    package = sentence_piece_bpe()
    for text in ("was", " was", "  was"):
        assert SENTENCE_PIECE.encode(text) == package.encode(text, add_special_tokens=False).ids
    assert len(SENTENCE_PIECE.encode(" was")) == len(SENTENCE_PIECE.encode("was")) + 1
    assert SENTENCE_PIECE.encode(" was", "text") == SENTENCE_PIECE.encode("was")


def test_special_words_of_the_vocabulary_are_split_in_texts():
    pieces = [unigram().token_to_id(piece) for piece in ("▁", "a", "<", "/", "s", ">")]
    assert unigram().token_to_id("</s>") in unigram().encode("a</s>").ids
    assert [number for number in UNIGRAM.encode("a</s>") if number != pieces[0]] == pieces[1:]


@pytest.mark.parametrize("role", ["pad", "image", "unknown"])
def test_files_that_lack_a_named_token_are_refused(tmp_path, role):
    path = tmp_path / "tokenizer.json"
    path.write_text(byte_level_bpe().to_str())
    names = {"pad": "<|endoftext|>", "eos": "<|im_end|>", role: "<|nowhere|>"}
    with pytest.raises(
        DataError, match=rf"tokenizer.json: .*no token '<\|nowhere\|>', which SpecialTokenNames.{role} names"
    ):
        HuggingFaceTokenizer.from_file(path, SpecialTokenNames(**names))
    names[role] = "<|eot_id|>"
    assert HuggingFaceTokenizer.from_file(path, SpecialTokenNames(**names)).special_tokens.eos == 2


def test_two_roles_of_one_token_are_refused():
    with pytest.raises(DataError, match="are both token"):
        HuggingFaceTokenizer(
            byte_level_bpe().to_str(), SpecialTokenNames(pad="<image>", eos="<image>", image="<image>")
        )


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"added_tokens": 3}', '{"model": {"type": "BPE"}}'])
def test_files_that_are_no_tokenizer_are_refused(tmp_path, content):
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with pytest.raises(DataError, match="tokenizer.json: not a file of the package tokenizers"):
        HuggingFaceTokenizer.from_file(path, NAMES)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"gone\.json: .*No such file"):
        HuggingFaceTokenizer.from_file(tmp_path / "gone.json", NAMES)


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_damaged_files_are_refused_or_used(data):
    fields = json.loads(byte_level_bpe().to_str())
    path = [data.draw(st.sampled_from(sorted(fields)))]
    fields[path[0]] = data.draw(st.sampled_from([None, 3, "x", [], {}, [{}], {"type": "x"}]))
    try:
        tokenizer = HuggingFaceTokenizer(json.dumps(fields), NAMES)
    except DataError as error:
        assert str(error)
    else:
        assert tokenizer.vocabulary_size > 0


def precompiled(charsmap):
    fields = json.loads(unigram().to_str())
    content = charsmap if isinstance(charsmap, str | None) else base64.b64encode(charsmap).decode()
    fields["normalizer"] = {
        "type": "Sequence",
        "normalizers": [{"type": "Precompiled", "precompiled_charsmap": content}],
    }
    return json.dumps(fields)


@pytest.mark.parametrize(
    "charsmap",
    [
        "AAAA",
        "/////w==",
        "not base64",
        "",
        None,
        b"",
        b"\x04",
        struct.pack("<I", 2**31),
        struct.pack("<I", 0) + b"\xff",
    ],
)
def test_a_bad_precompiled_normalizer_is_refused_in_one_line(charsmap, capfd):
    names = SpecialTokenNames(pad="<pad>", eos="</s>", unknown="<unk>")
    with pytest.raises(DataError, match="not a file of the package tokenizers") as caught:
        HuggingFaceTokenizer(precompiled(charsmap), names)
    assert len(str(caught.value).splitlines()) == 1
    assert "panicked" not in capfd.readouterr().err


def test_a_normalizer_on_which_the_package_fails_is_an_error_of_the_data():
    names = SpecialTokenNames(pad="<pad>", eos="</s>", unknown="<unk>")
    trie = struct.pack("<III", 8, 2**31 - 1, 2**32 - 1)
    with pytest.raises(DataError, match="the package tokenizers fails .*replace the model's tokenizer.json"):
        HuggingFaceTokenizer(precompiled(trie + b"abc"), names).encode("aé")


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ([{"name": ["default"], "template": "A"}], None),
        ([{"name": {}, "template": "B"}, {"name": "default", "template": "A"}], "A"),
        ([["default", "A"], 3, {"name": "default"}], None),
    ],
)
def test_names_of_chat_templates_may_be_anything(template, expected, tmp_path):
    settings = {"chat_template": template, "bos_token": ["<s>"], "eos_token": {"content": ["</s>"]}, "unk_token": "?"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    published = read_published_template(tmp_path)
    assert (published and published.source) == expected
    assert not published or published.variables == (("unk_token", "?"),)


def test_byte_tokenizers_of_other_versions_are_refused():
    with pytest.raises(DataError, match="not a tokenizer written by this version"):
        ByteTokenizer.from_json(ByteTokenizer().to_json().replace("10", "99"))
