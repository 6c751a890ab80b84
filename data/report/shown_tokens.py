"""The tokens of a sample as they are shown: text token by token, special tokens by name, media as one run each.

`examples.py` makes them, and `examples_html.py` shows them.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Literal

import numpy as np
from jaxtyping import Bool

from data.samples.token_layout import TokenLayout
from data.text.tokenizer import Tokenizer

FIRST_RUNS, LAST_RUNS = 160, 40
"""Number of runs that are shown at the beginning and at the end of a long sample."""

_MOST_BYTES = 4  # of a character of UTF-8, each of which may be a token
_UNFINISHED = "\N{REPLACEMENT CHARACTER}"

RunKind = Literal["text", "special", "medium", "left out"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenRun:
    """Consecutive tokens of a branch that are shown as one.

    Attributes:
        kind: Kind of the tokens: a token of text, or the few that make one character; a special token; all placeholders
            in a row that one encoder's outputs replace; or the tokens of a long sample that are not shown.
        branch: 0 for the trunk, or the number of the branch.
        position: Position of the first token in the sample.
        ids: Token ids.
        text: Text of the tokens; of a special token its name, of a medium the module that computes it.
        is_target: Whether predicting the tokens counts in the loss; of a run that is not shown, whether any does.
    """

    kind: RunKind
    branch: int
    position: int
    ids: tuple[int, ...]
    text: str
    is_target: bool


def in_loss(layout: TokenLayout) -> Bool[np.ndarray, " t"]:
    """Whether predicting each token counts in the loss: its predecessor in the same branch has it as its target."""
    follows = np.append(False, layout.branches[1:] == layout.branches[:-1])
    return np.append(False, layout.target_mask[:-1] > 0) & follows


def token_runs(layout: TokenLayout, tokenizer: Tokenizer, modules: Mapping[str, str]) -> tuple[TokenRun, ...]:
    """All tokens of a sample in order; of a long one the first and the last, and one run for all between.

    Args:
        layout: The sample.
        tokenizer: Tokenizer of the data set.
        modules: By encoder field, the module whose outputs take the place of tokens.
    """
    shown = _ShownTokens(layout, tokenizer, [modules[field] for field in layout.encoder_indices])
    starts = shown.starts()
    if len(starts) <= FIRST_RUNS + LAST_RUNS:
        return tuple(shown.runs([*starts, len(layout.tokens)]))
    middle, last = starts[FIRST_RUNS], starts[-LAST_RUNS]
    between = shown.run(middle, last, "left out", "")
    first = shown.runs(starts[: FIRST_RUNS + 1])
    return (*first, between, *shown.runs([*starts[-LAST_RUNS:], len(layout.tokens)]))


class _ShownTokens:
    """The tokens of one sample, and the encoders whose outputs replace them."""

    def __init__(self, layout: TokenLayout, tokenizer: Tokenizer, modules: list[str]) -> None:
        self._layout, self._tokenizer, self._modules = layout, tokenizer, modules
        self._is_target = in_loss(layout)
        self._media = np.full(len(layout.tokens), -1)  # number of the encoder whose output takes a token's place
        for number, indices in enumerate(layout.encoder_indices.values()):
            self._media[indices != -1] = number  # an output, or the newline vector

    def starts(self) -> list[int]:
        """Where runs begin: at every token, except inside the placeholders of a medium."""
        columns = (self._layout.branches, self._is_target.astype(int), self._media)
        changes = np.any([np.diff(column, prepend=-2) != 0 for column in columns], axis=0)
        return np.flatnonzero(changes | (self._media < 0)).tolist()

    def runs(self, bounds: list[int]) -> Iterator[TokenRun]:
        """The runs between consecutive bounds; tokens that make one character together are one."""
        place = 0
        while place + 1 < len(bounds):
            start, end = bounds[place : place + 2]
            first = int(self._layout.tokens[start])
            if self._media[start] >= 0:
                yield self.run(start, end, "medium", self._modules[self._media[start]])
            elif (name := self._tokenizer.special_name(first)) is not None:
                yield self.run(start, end, "special", name)
            else:
                while place + 2 < len(bounds) and self._goes_on(start, end):
                    place += 1
                    end = bounds[place + 1]
                yield self.run(start, end, "text", self._text(start, end))
            place += 1

    def run(self, start: int, end: int, kind: RunKind, text: str) -> TokenRun:
        """The tokens from start to end as one."""
        return TokenRun(
            kind=kind,
            branch=int(self._layout.branches[start]),
            position=start,
            ids=tuple(self._layout.tokens[start:end].tolist()),
            text=text,
            is_target=bool(self._is_target[start:end].any()),
        )

    def _goes_on(self, start: int, end: int) -> bool:
        """Whether tokens of text end within a character, and the next one may belong to it."""
        tokens = self._layout.tokens
        is_alike = (
            self._media[end] < 0
            and self._layout.branches[end] == self._layout.branches[start]
            and self._is_target[end] == self._is_target[start]
            and self._tokenizer.special_name(int(tokens[end])) is None
        )
        if not is_alike or end - start >= _MOST_BYTES:
            return False
        text, longer = (self._tokenizer.decode(tokens[start:last]) for last in (end, end + 1))
        return text.endswith(_UNFINISHED) and len(longer) <= len(text)

    def _text(self, start: int, end: int) -> str:
        """The text of tokens, with the space that some tokenizers put between them and the one before."""
        decode, tokens, branches = self._tokenizer.decode, self._layout.tokens, self._layout.branches
        alone = decode(tokens[start:end])
        if not start or self._media[start - 1] >= 0 or branches[start - 1] != branches[start]:
            return alone
        before, together = decode(tokens[start - 1 : start]), decode(tokens[start - 1 : end])
        return together.removeprefix(before) if before and together.startswith(before) else alone
