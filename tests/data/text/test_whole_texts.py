"""Conversations in parts have the ids that the package `tokenizers` gives for their whole text."""

import re

import pytest

from data.records import ImagePart, Media, Record, TextPart, Turn
from data.text.hugging_face_tokenizer import HuggingFaceTokenizer, SpecialTokenNames
from data.text.rendering import ControlToken, ConversationTemplate, MediaPlaceholder, TokenRun, render_conversation
from data.text.templates.chat_template import CHAT_TEMPLATES
from tests.data.text.tiny_tokenizer import SENTENCES, metaspace_bpe, prefixed_bytes_bpe, sentence_piece_bpe

WORDS = " ".join(SENTENCES).split()  # so that no token goes on behind a word, where answers may begin
PACKAGES = {
    "Metaspace before the first text": metaspace_bpe("first", WORDS),
    "Metaspace before every text": metaspace_bpe("always", WORDS),
    "no Metaspace": metaspace_bpe("never", [f" {word}" for word in WORDS]),
    "Prepend": sentence_piece_bpe(WORDS),
    "bytes behind a space": prefixed_bytes_bpe(),
}
every = pytest.mark.parametrize("package", PACKAGES.values(), ids=PACKAGES)
PICTURE = MediaPlaceholder(ImagePart(Media("a.png")), generated=False)
TOKEN = re.compile("(<image>|<s>|</s>)")


def own_tokenizer(package):
    unknown = "<unk>" if package.token_to_id("<unk>") is not None else None
    names = SpecialTokenNames(pad="</s>", eos="</s>", bos="<s>", image="<image>", unknown=unknown)
    return HuggingFaceTokenizer(package.to_str(), names)


def whole(package, text):
    return package.encode(text, add_special_tokens=False).ids


def flat(package, pieces):
    image = [package.token_to_id("<image>")]
    return [token for piece in pieces for token in (piece.ids if isinstance(piece, TokenRun) else image)]


class Written(ConversationTemplate):
    """A template that writes one text, of which answers are in braces."""

    def __init__(self, text):
        self.text = text

    def conversation(self, record, tokenizer):
        for number, stretch in enumerate(re.split("[{}]", self.text)):
            for piece in filter(None, TOKEN.split(stretch)):
                element = PICTURE if piece == "<image>" else ControlToken(piece) if TOKEN.match(piece) else piece
                yield element, bool(number % 2)


@every
@pytest.mark.parametrize(
    "text",
    [
        "What is in the picture?",
        " What is it?",
        "<s>What is it?</s> A house </s>in China.",
        "<s> What is it?",
        "<image>What <image> is <image><image>it?",
        "<image>  What is it?</s>",
        "<s>{A red flower.</s>}<s>{ A house.</s>}",
        "What is it?{ A red flower.</s>}",
        "USER: <image> What is it? ASSISTANT:{ A house</s>}USER: it?{ is</s>}",
    ],
)
def test_ids_are_those_of_the_whole_text(package, text):
    pieces = render_conversation(Record("r", ()), Written(text), own_tokenizer(package))
    assert flat(package, pieces) == whole(package, text.replace("{", "").replace("}", ""))


@every
def test_a_bos_before_the_text_of_a_template_is_no_part_of_the_text(package):
    turns = (Turn("user", (TextPart("What is it?"), PICTURE.part)), Turn("assistant", (TextPart("A house"),)))
    pieces = render_conversation(Record("r", turns), CHAT_TEMPLATES["vicuna"], own_tokenizer(package))
    text = "USER: What is it?<image> ASSISTANT: A house</s>"
    assert flat(package, pieces) == [package.token_to_id("<s>"), *whole(package, text)]


@every
def test_a_word_that_spells_a_special_token_is_read_as_text_without_further_spaces(package):
    tokenizer = own_tokenizer(package)
    ids = tokenizer.encode("a</s> house<image>", "token")
    assert not set(ids) & {package.token_to_id(name) for name in ("</s>", "<image>")}
    first = package.id_to_token(tokenizer.encode("house", "text")[0])
    assert first[0] == "h"
