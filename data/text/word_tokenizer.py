"""A word tokenizer: lower-cased words and punctuation marks, each one token, behind a few control tokens."""

import collections
import dataclasses
import functools
import json
import re
from collections.abc import Iterable
from typing import SupportsInt

from data.errors import DataError
from data.text.tokenizer import SpecialTokens, missing_control_token_error, validate_token_ids

PAD, BOS, EOS, ANSWER, IMAGE, GENERATE, UNKNOWN = range(7)
SPECIAL_TOKENS = ("<pad>", "<bos>", "<eos>", "<answer>", "<image>", "<generate>", "<unknown>")

_PIECE = re.compile(r"\w+|[^\w\s]")
_SPACE_BEFORE_MARK = re.compile(r"\s+([?.!,;:])")


def split_words(text: str) -> list[str]:
    """The lower-cased words and punctuation marks of `text`, in order."""
    return _PIECE.findall(text.lower())


@dataclasses.dataclass(frozen=True)
class WordTokenizer:
    """Maps words to ids: the control tokens first (`PAD` is 0), then `words` in their order.

    Text can never spell a control token: `<image>` typed by a user is three words.

    Attributes:
        words: The vocabulary; each entry is one word or mark as `split_words` yields it.
        has_audio_token: Whether there is a token for audio, `<audio>`; its id is the last, behind the words, so that a vocabulary
            with it numbers words as one without.

    Raises:
        DataError: A word stands twice, or is not one word.
    """

    words: tuple[str, ...]
    has_audio_token: bool = False

    def __post_init__(self) -> None:
        repeated = sorted(word for word, times in collections.Counter(self.words).items() if times > 1)
        if repeated:
            raise DataError(f"WordTokenizer.words: {', '.join(repeated)} stands more than once; keep one")
        for word in self.words:
            if split_words(word) != [word]:
                raise DataError(f"WordTokenizer.words: {word!r} is not one lower-case word; split it with split_words")

    @property
    def vocabulary_size(self) -> int:
        """Number of ids."""
        return len(SPECIAL_TOKENS) + len(self.words) + self.has_audio_token

    @property
    def special_tokens(self) -> SpecialTokens:
        """The control tokens."""
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
        return {word: number for number, word in enumerate(self.words, start=len(SPECIAL_TOKENS))}

    def encode(self, text: str) -> list[int]:
        """The ids of the words of `text`; a word outside the vocabulary becomes `UNKNOWN`."""
        return [self._ids.get(word, UNKNOWN) for word in split_words(text)]

    def unknown_words(self, text: str) -> tuple[str, ...]:
        """The words of `text` outside the vocabulary, each once, in order of appearance."""
        return tuple(dict.fromkeys(word for word in split_words(text) if word not in self._ids))

    def decode(self, ids: Iterable[SupportsInt]) -> str:
        """Text of `ids`; control tokens vanish, except `<unknown>`.

        Raises:
            DataError: An id outside the vocabulary.
        """
        pieces = []
        for number in validate_token_ids(ids, self.vocabulary_size):
            if number >= len(SPECIAL_TOKENS) and number != self.special_tokens.audio:
                pieces.append(self.words[number - len(SPECIAL_TOKENS)])
            elif number == UNKNOWN:
                pieces.append(SPECIAL_TOKENS[UNKNOWN])
        return _SPACE_BEFORE_MARK.sub(r"\1", " ".join(pieces))

    def control_token_id(self, name: str) -> int:
        """It has none that chat templates spell: raises DataError."""
        raise missing_control_token_error(self, name)

    def to_json(self) -> str:
        """Readable text that `from_json` turns back."""
        fields = {"special_tokens": SPECIAL_TOKENS, "words": self.words}
        return json.dumps(fields | ({"has_audio_token": True} if self.has_audio_token else {}), indent=1)

    @classmethod
    def from_json(cls, text: str) -> "WordTokenizer":
        """The tokenizer that `to_json` wrote.

        Raises:
            DataError: Not such a text, or written with other control tokens.
        """
        try:
            fields = json.loads(text)
            special_tokens, words = tuple(fields["special_tokens"]), tuple(fields["words"])
            has_audio_token = bool(fields.get("has_audio_token", False))
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"not a tokenizer written by WordTokenizer.to_json: {error!r}") from error
        if special_tokens != SPECIAL_TOKENS:
            raise DataError(f"tokenizer with control tokens {special_tokens}; this version has {SPECIAL_TOKENS}")
        return cls(words, has_audio_token)
