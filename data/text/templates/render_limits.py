"""Limits of one rendering of a template: its steps, and the characters of the texts that are made in it.

`bounded_environment.py` counts every operation by the `Meter` of the rendering that runs.
"""

import contextlib
import contextvars
import dataclasses
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

_Item = TypeVar("_Item")

MAX_STEPS = 1_000_000
"""Steps, nodes of the template that run in loops and macros, of one rendering, beside `STEPS_PER_GIVEN`."""

STEPS_PER_GIVEN = 1000
"""Further steps for each value of the conversation."""

MAX_CHARACTERS = 1 << 24
"""Characters of all texts that one rendering may make, intermediate ones too, beside `CHARACTERS_PER_GIVEN`."""

CHARACTERS_PER_GIVEN = 32
"""Further characters for each character of the conversation."""

_STEPS_OF_VALUE = 2  # that is weighed, in the time of steps
_MAX_BITS = 1024  # of a whole number


class LimitExceededError(Exception):
    """A template takes more steps or characters than one rendering may."""


@dataclasses.dataclass
class Meter:
    """Counts the steps and characters of one rendering.

    Attributes:
        characters_left: Characters of texts that the rendering may still make.
        steps_left: Steps that the rendering may still run.
    """

    characters_left: int = MAX_CHARACTERS
    steps_left: int = MAX_STEPS

    def step(self, count: int = 1) -> None:
        """Takes steps; raises LimitExceededError if there are none left."""
        self.steps_left -= count
        if self.steps_left < 0:
            raise LimitExceededError(
                f"it takes more than {MAX_STEPS:,} steps and {STEPS_PER_GIVEN:,} for each value of the conversation"
            )

    def make(self, characters: int) -> None:
        """Counts a text before it is made; raises LimitExceededError if it is too long beside those before it."""
        self.characters_left -= max(characters, 0)
        if self.characters_left < 0:
            raise LimitExceededError(
                f"its texts have more than {MAX_CHARACTERS:,} characters and {CHARACTERS_PER_GIVEN} times the "
                "conversation's"
            )

    def weigh(self, value: object) -> int:
        """Characters of a value as text, about; takes a step for each value within it."""
        characters, values = 0, [value]
        while values:
            self.step(_STEPS_OF_VALUE)
            inner = values.pop()
            if isinstance(inner, str | bytes):
                characters += len(inner)
            elif isinstance(inner, list | tuple | set | frozenset):
                self.step(_STEPS_OF_VALUE * len(inner))
                values += inner
            elif isinstance(inner, Mapping):
                self.step(2 * _STEPS_OF_VALUE * len(inner))
                values += [*inner.keys(), *inner.values()]
            else:
                characters += 24 if not isinstance(inner, int) else 1 + require_small(inner).bit_length() // 3
        return characters

    def counted(self, items: Iterable[_Item], steps: int = 1) -> Iterator[_Item]:
        """Items of a loop, each of some steps."""
        for item in items:
            self.step(steps)
            yield item


_METER: contextvars.ContextVar[Meter | None] = contextvars.ContextVar("meter", default=None)


def meter() -> Meter:
    """The meter of the rendering that runs; a new one for expressions evaluated while a template is read."""
    return _METER.get() or Meter()


@contextlib.contextmanager
def limited(given: Any) -> Iterator[None]:
    """Limits the rendering in this context, in proportion to the size of the values given to the template."""
    fresh, given_meter = Meter(), Meter(steps_left=sys.maxsize)
    fresh.characters_left += CHARACTERS_PER_GIVEN * given_meter.weigh(given)
    fresh.steps_left += STEPS_PER_GIVEN * (sys.maxsize - given_meter.steps_left)
    token = _METER.set(fresh)
    try:
        yield
    finally:
        _METER.reset(token)


def require_small(number: int) -> int:
    """The number; raises LimitExceededError for one of more than 1,024 bits."""
    if number.bit_length() > _MAX_BITS:
        raise LimitExceededError(f"a whole number has more than {_MAX_BITS} bits")
    return number
