"""The early and the late program that an operation or a program is split into, and the arrays between them."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax

Flags = list[bool]
"""Flags, one for each operand or each result."""


class EarlyResult(NamedTuple):
    """The results of an early program.

    Attributes:
        results: The results that the early program computes; None at the places of the others.
        saved: The arrays that the late program needs besides the operands.
    """

    results: list[Any]
    saved: list[jax.Array]


@runtime_checkable
class Split(Protocol):
    """A program, or an operation, that is split.

    Attributes:
        early_operands: Which operands the early program reads.
        early_results: Which results it computes.
    """

    early_operands: Flags
    early_results: Flags

    def choose_late(self, results: Flags) -> Flags:
        """Chooses the results that the late program computes, before either runs; returns which operands it reads."""
        ...

    @property
    def saved_count(self) -> int:
        """Number of arrays that the early program saves."""
        ...

    def early(self, operands: Sequence[Any]) -> EarlyResult:
        """Runs the early program; operands that it does not read may be anything."""
        ...

    def late(self, operands: Sequence[Any], saved: Sequence[jax.Array]) -> list[Any]:
        """Runs the late program; None at the places of results that it does not compute."""
        ...


def chosen(entries: Sequence[Any], flags: Sequence[bool]) -> list[Any]:
    """Selects the entries whose flags are set."""
    return [entry for entry, flag in zip(entries, flags, strict=True) if flag]


def placed(entries: Sequence[Any], flags: Sequence[bool]) -> list[Any]:
    """Returns a list with the entries where flags are set, and None elsewhere."""
    remaining = iter(entries)
    return [next(remaining) if flag else None for flag in flags]
