"""What a module's pieces give to the rest of the program."""

from typing import NamedTuple

import jax

Batch = dict[str, jax.Array]
"""The arrays of one microbatch that a module reads, rows first."""

ActivationsByModule = dict[str, jax.Array]
"""Activations between modules by the name of the module at the other end, rows first."""


class LayerOutput(NamedTuple):
    """What a layer of a stack returns that has a loss of its own, such as that its experts be used evenly.

    Attributes:
        x: Activations for the next layer.
        loss: Sum over the local rows, already divided by the global batch's normaliser.
    """

    x: jax.Array
    auxiliary_loss: jax.Array


class ModuleOutput(NamedTuple):
    """What the last piece of a module returns.

    Attributes:
        outputs: Activations by the name of the module that takes them.
        loss: Sum over the local rows, already divided by the global batch's normaliser; None if it has none.
        judged: Per-row arrays for evaluation, not used in training.
        balance: Sum of the losses of the module's layers, where they have some (`Passing`).
    """

    activations: ActivationsByModule
    loss: jax.Array | None = None
    auxiliary_metrics: ActivationsByModule = {}
    auxiliary_loss: jax.Array | None = None


def auxiliary_loss_name(module: str) -> str:
    """The name that the losses of a module's layers go by; the module's own loss goes by its name."""
    return f"{module}/balance"
