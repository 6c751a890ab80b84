"""A check of the values of a config.json that several architectures call."""

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
