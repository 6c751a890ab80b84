"""What a module's pieces give to the rest of the program."""

from typing import NamedTuple

import jax

Batch = dict[str, jax.Array]
"""The arrays of one microbatch that a module reads, rows first."""

Channels = dict[str, jax.Array]
"""Activations between modules by the name of the module at the other end, rows first."""


class Leaving(NamedTuple):
    """What the last piece of a module returns.

    Attributes:
        outputs: Activations by the name of the module that takes them.
        loss: Sum over the local rows, already divided by the global batch's normaliser; None if it has none.
        judged: Per-row arrays for evaluation, not used in training.
    """

    outputs: Channels
    loss: jax.Array | None = None
    judged: Channels = {}
