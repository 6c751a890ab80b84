"""A word tokenizer: every lower-cased word and punctuation mark is one token, after a few special tokens."""

import collections
import dataclasses
import functools
import json
import re
from collections.abc import Iterable
from typing import SupportsInt

from configs.common.short_repr import short_repr
from configs.common.strict_json import parse_json
from data.errors import DataError
from data.text.tokenizer import Preceding, SpecialTokens, missing_control_token_error, validate_token_ids

PAD, BOS, EOS, ANSWER, IMAGE, GENERATE, UNKNOWN = range(7)
SPECIAL_TOKENS = ("<pad>", "<bos>", "<eos>", "<answer>", "<image>", "<generate>", "<unknown>")

_WORD_OR_MARK = re.compile(r"\w+|[^\w\s]")
_SPACE_BEFORE_MARK = re.compile(r"\s+([?.!,;:])")


def split_words(text: str) -> list[str]:
    """The lower-cased words and punctuation marks of a text, in order."""
    return _WORD_OR_MARK.findall(text.lower())


@dataclasses.dataclass(frozen=True)
class WordTokenizer:
    """Maps words to ids: the special tokens first (`PAD` is 0), then `words` in their order.

    No text spells a special token: `<image>` in a text is three words.

    Attributes:
        words: The vocabulary; each entry is one word or mark as `split_words` returns it.
        has_audio_token: Whether there is a token `<audio>`. Its id is the last, after the words, so that words have the
            same ids with it and without.

    Raises:
        DataError: A word is repeated, or is not a single word.
    """

    words: tuple[str, ...]
    has_audio_token: bool = False

    __repr__ = short_repr

    def __post_init__(self) -> None:
        repeated = sorted(word for word, times in collections.Counter(self.words).items() if times > 1)
        if repeated:
            raise DataError(f"WordTokenizer.words: {', '.join(repeated)} is repeated; keep one")
        for word in self.words:
            if split_words(word) != [word]:
                raise DataError(f"WordTokenizer.words: {word!r} is not one lower-case word; split it with split_words")

    @property
    def vocabulary_size(self) -> int:
        """Number of token ids."""
        return len(SPECIAL_TOKENS) + len(self.words) + self.has_audio_token

    @property
    def special_tokens(self) -> SpecialTokens:
        """The special tokens."""
        return SpecialTokens(
            pad=PAD,
            bos=BOS,
            eos=EOS,
            answer=ANSWER,
            image=IMAGE,
            audio=self.vocabulary_size - 1 if self.has_audio_token else None,
            generate=GENERATE,
            unknown=UNKNOWN,
        )

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        return {word: token_id for token_id, word in enumerate(self.words, start=len(SPECIAL_TOKENS))}

    def encode(self, text: str, behind: Preceding = "nothing") -> list[int]:
        """The ids of the words of a text; a word outside the vocabulary becomes `UNKNOWN`."""
        return [self._ids.get(word, UNKNOWN) for word in split_words(text)]

    def unknown_words(self, text: str) -> tuple[str, ...]:
        """The words of a text outside the vocabulary, each once, in order of appearance."""
        return tuple(dict.fromkeys(word for word in split_words(text) if word not in self._ids))

    def decode(self, ids: Iterable[SupportsInt]) -> str:
        """The text of token ids; special tokens are dropped, except `<unknown>`.

        Raises:
            DataError: An id outside the vocabulary.
        """
        pieces = []
        for token_id in validate_token_ids(ids, self.vocabulary_size):
            if token_id >= len(SPECIAL_TOKENS) and token_id != self.special_tokens.audio:
                pieces.append(self.words[token_id - len(SPECIAL_TOKENS)])
            elif token_id == UNKNOWN:
                pieces.append(SPECIAL_TOKENS[UNKNOWN])
        return _SPACE_BEFORE_MARK.sub(r"\1", " ".join(pieces))

    def control_token_id(self, name: str) -> int:
        """Raises DataError: there are no control tokens."""
        raise missing_control_token_error(self, name)

    def special_name(self, token_id: int) -> str | None:
        """The name of a special token, `<unknown>` among them."""
        role = self.special_tokens.role_of(token_id)
        return f"<{role}>" if role else None

    def to_json(self) -> str:
        """Human-readable text for `from_json`."""
        fields = {"kind": "words", "special_tokens": SPECIAL_TOKENS, "words": self.words}
        return json.dumps(fields | {"has_audio_token": self.has_audio_token}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> "WordTokenizer":
        """The tokenizer that `to_json` wrote.

        Raises:
            DataError: Another text, or one with other special tokens.
        """
        try:
            fields = parse_json(text, "the tokenizer", DataError)
            special_tokens, words = tuple(fields["special_tokens"]), tuple(fields["words"])
            has_audio_token = bool(fields["has_audio_token"])
            if not all(isinstance(word, str) for word in words):
                raise TypeError("a word is a text")
        except (KeyError, TypeError) as error:
            raise DataError(f"not a tokenizer written by WordTokenizer.to_json: {error!r}") from error
        if special_tokens != SPECIAL_TOKENS:
            raise DataError(f"a tokenizer with special tokens {special_tokens}; this version has {SPECIAL_TOKENS}")
        return cls(words, has_audio_token)
