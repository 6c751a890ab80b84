"""Tokenizers of any kind as a checkpoint stores them."""

import json

from data.errors import DataError
from data.text.byte_tokenizer import ByteTokenizer
from data.text.hugging_face_tokenizer import HuggingFaceTokenizer
from data.text.tokenizer import Tokenizer
from data.text.word_tokenizer import WordTokenizer

_READERS = {
    "words": WordTokenizer.from_json,
    "bytes": ByteTokenizer.from_json,
    "hugging_face": HuggingFaceTokenizer.from_json,
}


def tokenizer_from_json(text: str) -> Tokenizer:
    """The tokenizer whose `to_json` wrote the text; raises DataError for another text."""
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise DataError(f"not a tokenizer written by to_json: {error}") from error
    # WordTokenizer wrote no kind when it was the only one.
    kind = fields.get("kind", "words") if isinstance(fields, dict) else None
    if kind not in _READERS:
        raise DataError(f"a tokenizer of kind {kind!r}; this version knows {', '.join(_READERS)}")
    return _READERS[kind](text)
