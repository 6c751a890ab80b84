"""Activations in a config.json: their names in transformers, and the entry of the key that holds one."""

import functools

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


def read_activation(key: str, published: str) -> str:
    """Returns the name of an activation here.

    Args:
        key: Key of config.json, for messages.
        published: Its value, the name in transformers.

    Raises:
        ValueError: The activation cannot be computed.
    """
    if published not in ACTIVATIONS:
        raise ValueError(f"{key} is {published!r}; choose one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[published]


def published_activation(activation: str) -> str:
    """Returns the name of an activation in transformers."""
    published_names = {name: published for published, name in reversed(ACTIVATIONS.items())}
    return published_names[activation]


def activation_key(key: str) -> Key:
    """Makes the entry of the activation of feed-forward layers."""
    return Key(key, "activation", to_field=functools.partial(read_activation, key), to_value=published_activation)
