"""Taking the closure of `jax.vjp` apart, so that only activations travel from a forward to a backward program.

A closure holds, besides activations, the very values it was made from: weights, inputs, the batch. Those are at
hand in the backward program anyway; returned from the forward program they would be copies, one per microbatch in
flight. They are recognised by identity while tracing and left out.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax

_SAVED, _AT_HAND, _STATIC = "saved", "at hand", "static"


@dataclasses.dataclass(frozen=True)
class Closure:
    """The static half of a vjp closure: its structure, and where each of its leaves comes from."""

    structure: Any
    sources: tuple[tuple[str, Any], ...]

    @property
    def saved(self) -> int:
        """Number of leaves that the forward program must return."""
        return sum(kind == _SAVED for kind, _ in self.sources)

    def restore(self, residuals: Sequence[jax.Array], at_hand: Sequence[jax.Array]) -> Any:
        """The vjp function again, from saved residuals and the same values at hand."""
        waiting = iter(residuals)
        leaves = {
            _SAVED: lambda _: next(waiting),
            _AT_HAND: lambda position: at_hand[position],
            _STATIC: lambda leaf: leaf,
        }
        return jax.tree.unflatten(self.structure, [leaves[kind](value) for kind, value in self.sources])


def take_apart(vjp: Any, at_hand: Sequence[jax.Array]) -> tuple[list[jax.Array], Closure]:
    """Residuals to save, and the rest of the closure; call inside the trace that made the vjp.

    Args:
        vjp: What `jax.vjp` returned.
        at_hand: Values the backward program will have: the same objects that the differentiated function used.
    """
    positions = {id(value): position for position, value in enumerate(at_hand)}
    leaves, structure = jax.tree.flatten(vjp)
    residuals, sources = [], []
    for leaf in leaves:
        if not isinstance(leaf, jax.Array):
            sources.append((_STATIC, leaf))
        elif id(leaf) in positions:
            sources.append((_AT_HAND, positions[id(leaf)]))
        else:
            sources.append((_SAVED, None))
            residuals.append(leaf)
    return residuals, Closure(structure, tuple(sources))
