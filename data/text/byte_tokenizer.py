"""A tokenizer without a vocabulary file: one token for each byte of UTF-8, after the special tokens."""

import dataclasses
import json
from collections.abc import Iterable
from typing import SupportsInt

from data.errors import DataError
from data.text.tokenizer import (
    Preceding,
    SpecialTokens,
    missing_control_token_error,
    replace_lone_surrogates,
    validate_token_ids,
)

# The first six ids are the same as in data.text.word_tokenizer.
_SPECIAL_TOKENS = SpecialTokens(
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
_FIRST_BYTE = len(_SPECIAL_TOKENS.ids)


@dataclasses.dataclass(frozen=True)
class ByteTokenizer:
    """One token for each byte, so that no text is outside the vocabulary."""

    vocabulary_size = _FIRST_BYTE + 256

    @property
    def special_tokens(self) -> SpecialTokens:
        """Ids 0 to 10; there is no `unknown`."""
        return _SPECIAL_TOKENS

    def encode(self, text: str, behind: Preceding = "nothing") -> list[int]:
        """The bytes of the text in UTF-8."""
        return [_FIRST_BYTE + byte for byte in replace_lone_surrogates(text).encode()]

    def decode(self, ids: Iterable[SupportsInt]) -> str:
        """The text of the bytes, with U+FFFD where they are not UTF-8; special tokens are dropped."""
        token_ids = validate_token_ids(ids, self.vocabulary_size)
        text = bytes(token_id - _FIRST_BYTE for token_id in token_ids if token_id >= _FIRST_BYTE)
        return text.decode(errors="replace")

    def control_token_id(self, name: str) -> int:
        """Raises DataError: there are no control tokens."""
        raise missing_control_token_error(self, name)

    def special_name(self, token_id: int) -> str | None:
        """The role of a special token, as in `<bos>`."""
        role = self.special_tokens.role_of(token_id)
        return f"<{role}>" if role else None

    def to_json(self) -> str:
        """The kind and the special tokens as JSON text, for `from_json`."""
        return json.dumps({"kind": "bytes", "special": dataclasses.asdict(_SPECIAL_TOKENS)}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> "ByteTokenizer":
        """The tokenizer that `to_json` wrote.

        Raises:
            DataError: Another text, or one with other special tokens.
        """
        expected = cls().to_json()
        if text != expected:
            raise DataError(f"not a tokenizer written by this version's ByteTokenizer.to_json, which writes {expected}")
        return cls()
