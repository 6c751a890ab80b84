"""Parsers of the values of flags: each converts a text to a value, or raises an error that says what to give."""

import argparse
import math
import typing
from collections.abc import Callable

from configs.common.proposals import nearest

Item = typing.TypeVar("Item")


def integer(minimum: int | None = None, maximum: int | None = None) -> Callable[[str], int]:
    """Makes a parser of whole numbers within bounds."""
    return _number(int, "a whole number", minimum, maximum)


def number(minimum: int | float | None = None, maximum: int | float | None = None) -> Callable[[str], float]:
    """Makes a parser of finite numbers within bounds."""
    return _number(float, "a number", minimum, maximum)


def one_of(*names: str) -> Callable[[str], str]:
    """Makes a parser that accepts one of some names."""

    def parse(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(names)}{nearest(text, names)}")
        return text

    return parse


def list_of(parse_item: Callable[[str], Item]) -> Callable[[str], tuple[Item, ...]]:
    """Makes a parser of values that commas separate."""

    def parse(text: str) -> tuple[Item, ...]:
        return tuple(parse_item(item.strip()) for item in text.split(",") if item.strip())

    return parse


def _number(
    kind: Callable[[str], Item], noun: str, minimum: int | float | None, maximum: int | float | None
) -> Callable[[str], Item]:
    bounds = [f"from {minimum}"] if minimum is not None else []
    bounds += [f"to {maximum}"] if maximum is not None else []
    wanted = " ".join([noun, *bounds])

    def parse(text: str) -> Item:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not _within(value, minimum, maximum):
            raise argparse.ArgumentTypeError(f"{text!r} is not {wanted}")
        return typing.cast(Item, value)

    return parse


def _within(value: typing.Any, minimum: int | float | None, maximum: int | float | None) -> bool:
    finite = value == value and abs(value) != math.inf
    return finite and (minimum is None or value >= minimum) and (maximum is None or value <= maximum)
