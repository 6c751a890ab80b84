"""Checks of the values of a config.json that several architectures call."""

from collections.abc import Mapping
from typing import Any


def require_values(values: Mapping[str, Any], required: Mapping[str, Any]) -> None:
    """Checks that keys have the only values that can be computed.

    Args:
        values: Contents of config.json.
        required: The required value by key; keys that the file leaves out are not checked.

    Raises:
        ValueError: A key has another value.
    """
    for key, value in required.items():
        if values.get(key, value) != value:
            raise ValueError(f"{key} is {values[key]!r}; only {value!r} can be computed")


def require_equal(values: Mapping[str, Any], *pairs: tuple[str, str]) -> None:
    """Raises ValueError for two keys that have different values."""
    for first, second in pairs:
        if values[first] != values[second]:
            raise ValueError(
                f"{first} is {values[first]} and {second} is {values[second]}; only equal ones can be computed"
            )
