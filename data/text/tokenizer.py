"""What every tokenizer can do, and the tokens that no text can spell."""

import dataclasses
from collections.abc import Iterable
from typing import Protocol, SupportsInt, runtime_checkable

from data.errors import DataError


@dataclasses.dataclass(frozen=True)
class SpecialTokens:
    """Ids of the tokens that lay a sample out; None for those that a tokenizer has not.

    Only `pad`, which is never a target, may share its id with another.

    Attributes:
        pad: Fills rows.
        eos: Ends an answer.
        bos: Begins a sample.
        answer: Ends a question where no chat template does.
        image, audio: Stand for one token of an encoder.
        generate: Conditions a generated image.
        unknown: Stands for what the vocabulary has not; the only one here that `encode` may give.
        image_start, image_end, audio_start, audio_end: Delimit the tokens of an encoder.
    """

    pad: int
    eos: int
    bos: int | None = None
    answer: int | None = None
    image: int | None = None
    audio: int | None = None
    generate: int | None = None
    unknown: int | None = None
    image_start: int | None = None
    image_end: int | None = None
    audio_start: int | None = None
    audio_end: int | None = None

    def __post_init__(self) -> None:
        owners: dict[int, str] = {}
        for role, number in self._known().items():
            if role != "pad" and number in owners:
                raise DataError(f"{owners[number]} and {role} are both token {number}; give each a token of its own")
            if role != "pad":
                owners[number] = role

    def require(self, role: str) -> int:
        """The id of a token that a layout cannot do without.

        Args:
            role: Name of a field.

        Raises:
            DataError: The tokenizer has no such token.
        """
        known = self._known()
        if role not in known:
            raise DataError(
                f"the tokenizer has no token for {role!r}, which this layout needs; it has {', '.join(known)}. "
                f"Name one for it (TokenNames.{role}), or take another tokenizer"
            )
        return known[role]

    @property
    def ids(self) -> frozenset[int]:
        """All of them."""
        return frozenset(self._known().values())

    def _known(self) -> dict[str, int]:
        return {role: number for role, number in dataclasses.asdict(self).items() if number is not None}


@runtime_checkable
class Tokenizer(Protocol):
    """Maps text to ids 0..size-1 and back."""

    @property
    def vocabulary_size(self) -> int:
        """Number of ids."""
        ...

    @property
    def special_tokens(self) -> SpecialTokens:
        """Its special tokens."""
        ...

    def encode(self, text: str) -> list[int]:
        """The ids of a text; whatever it says, none of them special but `unknown`, and none is added."""
        ...

    def decode(self, ids: Iterable[SupportsInt]) -> str:
        """Text of ids, without the special ones; raises DataError for an id outside the vocabulary."""
        ...

    def control_token_id(self, name: str) -> int:
        """The id of a token that chat templates spell, as `<|im_start|>`, and texts cannot; DataError without it."""
        ...

    def to_json(self) -> str:
        """All of it, for `data.text.saved_tokenizer.tokenizer_from_json`."""
        ...


def replace_lone_surrogates(text: str) -> str:
    """The text with each surrogate that stands alone, as JSON can hold one, replaced by U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def validate_token_ids(ids: Iterable[SupportsInt], size: int) -> list[int]:
    """The ids as integers; raises DataError for one outside the vocabulary."""
    numbers = [int(number) for number in ids]
    for number in numbers:
        if not 0 <= number < size:
            raise DataError(f"token id {number} is outside the vocabulary of {size} ids")
    return numbers


def missing_control_token_error(tokenizer: object, name: str) -> DataError:
    """The refusal of a chat template whose token the tokenizer has not."""
    return DataError(
        f"{type(tokenizer).__name__} has no special token {name!r}, which the chat template spells; take the "
        "tokenizer of a model that was trained with this template, or the template 'plain' or 'vicuna'"
    )
