"""The tokenizer interface, special tokens, and reading a saved tokenizer of any kind."""

import dataclasses
import importlib
from collections.abc import Iterable
from typing import Literal, Protocol, SupportsInt, runtime_checkable

from configs.common.strict_json import parse_json
from data.errors import DataError


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpecialTokens:
    """Ids of the tokens that structure a sample; None for tokens that a tokenizer does not have.

    Only `pad`, which is never a target, may share its id with another role.

    Attributes:
        pad: Fills rows.
        eos: Ends an answer.
        bos: Begins a sample.
        answer: Ends a question where no chat template does.
        image: Placeholder for one backbone token of the vision encoder.
        audio: Placeholder for one backbone token of the audio encoder.
        video: Placeholder for one backbone token of frames of a clip; `image` where there is none.
        generate: Token whose hidden state conditions a generated image.
        unknown: Stands for text outside the vocabulary; the only special token that `encode` may return.
        image_start, image_end: Delimit the tokens of an image, and of a clip or its frames.
        audio_start, audio_end: Delimit the tokens of an audio clip.
    """

    pad: int
    eos: int
    bos: int | None = None
    answer: int | None = None
    image: int | None = None
    audio: int | None = None
    video: int | None = None
    generate: int | None = None
    unknown: int | None = None
    image_start: int | None = None
    image_end: int | None = None
    audio_start: int | None = None
    audio_end: int | None = None

    def __post_init__(self) -> None:
        role_of_id: dict[int, str] = {}
        for role, token_id in self._defined().items():
            if role != "pad" and token_id in role_of_id:
                raise DataError(
                    f"{role_of_id[token_id]} and {role} are both token {token_id}; give each a token of its own"
                )
            if role != "pad":
                role_of_id[token_id] = role

    def role_of(self, token_id: int) -> str | None:
        """The role of a token, not `pad` where it has another; None without one."""
        return {defined_id: role for role, defined_id in self._defined().items()}.get(token_id)

    def require(self, role: str) -> int:
        """The id of a token that a sample cannot do without.

        Args:
            role: Name of a field.

        Raises:
            DataError: The tokenizer has no such token.
        """
        defined = self._defined()
        if role not in defined:
            raise DataError(
                f"the tokenizer has no token for {role!r}, which this layout needs; it has {', '.join(defined)}. "
                f"Name one for it (SpecialTokenNames.{role}), or use another tokenizer"
            )
        return defined[role]

    @property
    def ids(self) -> frozenset[int]:
        """The ids of all special tokens."""
        return frozenset(self._defined().values())

    def _defined(self) -> dict[str, int]:
        return {role: token_id for role, token_id in dataclasses.asdict(self).items() if token_id is not None}


Preceding = Literal["nothing", "token", "text"]
"""What precedes a text: nothing, a special token or a medium, or text that is encoded apart."""


@runtime_checkable
class Tokenizer(Protocol):
    """Maps text to token ids 0..vocabulary_size-1 and back."""

    @property
    def vocabulary_size(self) -> int:
        """Number of token ids."""
        ...

    @property
    def special_tokens(self) -> SpecialTokens:
        """The special tokens."""
        ...

    def encode(self, text: str, behind: Preceding = "nothing") -> list[int]:
        """The token ids of a text that stands behind something else: some tokenizers put a space before it.

        No text is encoded as a special token other than `unknown`, and no special token is added.
        """
        ...

    def decode(self, ids: Iterable[SupportsInt]) -> str:
        """The text of token ids, without special tokens; raises DataError for an id outside the vocabulary."""
        ...

    def control_token_id(self, name: str) -> int:
        """The id of a token that only chat templates can spell, such as `<|im_start|>`; DataError without it."""
        ...

    def special_name(self, token_id: int) -> str | None:
        """Name of a token that no text is encoded to, such as `<|im_start|>`, or of unknown text; None for others."""
        ...

    def to_json(self) -> str:
        """The whole tokenizer as text for `tokenizer_from_json`."""
        ...


_SAVED_KINDS = {
    "words": ("data.text.word_tokenizer", "WordTokenizer"),
    "bytes": ("data.text.byte_tokenizer", "ByteTokenizer"),
    "hugging_face": ("data.text.hugging_face_tokenizer", "HuggingFaceTokenizer"),
}


def tokenizer_from_json(text: str) -> Tokenizer:
    """The tokenizer, of any kind, whose `to_json` wrote the text; raises DataError for another text."""
    fields = parse_json(text, "the tokenizer", DataError)
    kind = fields.get("kind") if isinstance(fields, dict) else None
    if not isinstance(kind, str) or kind not in _SAVED_KINDS:
        raise DataError(f"a tokenizer of kind {kind!r}; this version supports {', '.join(_SAVED_KINDS)}")
    module, name = _SAVED_KINDS[kind]
    return getattr(importlib.import_module(module), name).from_json(text)


def replace_lone_surrogates(text: str) -> str:
    """The text with every lone surrogate, which JSON can contain, replaced by U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def validate_token_ids(ids: Iterable[SupportsInt], vocabulary_size: int) -> list[int]:
    """The ids as integers; raises DataError for one outside the vocabulary."""
    token_ids = [int(token_id) for token_id in ids]
    for token_id in token_ids:
        if not 0 <= token_id < vocabulary_size:
            raise DataError(f"token id {token_id} is outside the vocabulary of {vocabulary_size} ids")
    return token_ids


def missing_control_token_error(tokenizer: object, name: str) -> DataError:
    """The error for a chat template that spells a token which the tokenizer does not have."""
    return DataError(
        f"{type(tokenizer).__name__} has no special token {name!r}, which the chat template spells; use the "
        "tokenizer of a model that was trained with this template, or the template 'plain' or 'vicuna'"
    )
