"""Activations in a config.json: their names in transformers, and the entry of the key that holds one."""

from typing import Any

from mmjax.weights.published.key_table import Key

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "silu": "silu",
    "relu": "relu",
}
"""Names of activations here, by their names in transformers; of several names for one, the first is written."""


def read_activation(key: str, published: str, names: dict[str, str] = ACTIVATIONS) -> str:
    """Returns the name of an activation here.

    Args:
        key: Key of config.json, for messages.
        published: Its value, the name in transformers.
        names: Names of the activations that can be computed, as in `ACTIVATIONS`.

    Raises:
        ValueError: The activation is none of these.
    """
    if published not in names:
        raise ValueError(f"{key} is {published!r}; choose one of {', '.join(names)}")
    return names[published]


def published_activation(activation: str, names: dict[str, str] = ACTIVATIONS) -> str:
    """Returns the name of an activation in transformers, or the name here of one that cannot be read back."""
    published_names = {name: published for published, name in reversed(names.items())}
    return published_names.get(activation, activation)


def activation_key(key: str, names: dict[str, str] = ACTIVATIONS, **others: Any) -> Key:
    """Makes the entry of the activation of feed-forward layers.

    Args:
        key: The key.
        names: Names of the activations that can be computed, as in `ACTIVATIONS`.
        **others: Other attributes of the entry.
    """
    return Key(
        key,
        "activation",
        to_field=lambda published: read_activation(key, published, names),
        to_value=lambda activation: published_activation(activation, names),
        **others,
    )
