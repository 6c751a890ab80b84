"""A tokenizer that needs no file: the bytes of UTF-8 behind the special tokens."""

import dataclasses
import json
from collections.abc import Iterable
from typing import SupportsInt

from data.errors import DataError
from data.text.tokenizer import SpecialTokens, missing_control_token_error, replace_lone_surrogates, validate_token_ids

# The first six stand where those of data.text.word_tokenizer do.
_SPECIAL = SpecialTokens(
    pad=0,
    bos=1,
    eos=2,
    answer=3,
    image=4,
    generate=5,
    audio=6,
    image_start=7,
    image_end=8,
    audio_start=9,
    audio_end=10,
)
_FIRST = len(_SPECIAL.ids)


@dataclasses.dataclass(frozen=True)
class ByteTokenizer:
    """One token a byte, so that nothing is unknown."""

    vocabulary_size = _FIRST + 256

    @property
    def special_tokens(self) -> SpecialTokens:
        """Ids 0 to 10; there is no `unknown`."""
        return _SPECIAL

    def encode(self, text: str) -> list[int]:
        """Its bytes in UTF-8."""
        return [_FIRST + byte for byte in replace_lone_surrogates(text).encode()]

    def decode(self, ids: Iterable[SupportsInt]) -> str:
        """Text of the bytes, U+FFFD where they are no UTF-8; special tokens vanish."""
        numbers = validate_token_ids(ids, self.vocabulary_size)
        return bytes(number - _FIRST for number in numbers if number >= _FIRST).decode(errors="replace")

    def control_token_id(self, name: str) -> int:
        """It has none: raises DataError."""
        raise missing_control_token_error(self, name)

    def to_json(self) -> str:
        """Its kind and special tokens."""
        return json.dumps({"kind": "bytes", "special": dataclasses.asdict(_SPECIAL)}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> "ByteTokenizer":
        """The tokenizer that `to_json` wrote.

        Raises:
            DataError: Not such a text, or written with other special tokens.
        """
        if text != (ours := cls().to_json()):
            raise DataError(f"not a tokenizer written by this version's ByteTokenizer.to_json, which writes {ours}")
        return cls()
