"""A module as pieces: what comes before the layers, the stack of equal layers, what comes after."""

import dataclasses
from collections.abc import Callable

from flax import nnx


@dataclasses.dataclass(frozen=True)
class Piece:
    """Part of a module that one pipeline stage holds whole, or a stack of equal layers cut anywhere.

    Attributes:
        name: Unique within its module.
        owner: The part a user trains or freezes by name, such as `vision` or `vision_projector`.
        build: Makes the Flax module (of one layer, for a stack).
        layers: Number of layers of a stack; None for a single piece.
        prepare: For a stack, what its layers share, computed once a stage from the batch.
        borrows: Parameters owned by another piece: (path here, piece there, path there).
        holds: Whether a parameter of what `build` makes is this piece's, by its path; another piece holds the rest.
        adapts: The piece that this one's parameters are adapters of: that one computes with them.
        by_position: Whether it takes and gives activations `[r, s, d]` whose positions the tensor ranks divide, where
            the plan says so; what enters and leaves the module is never divided.
    """

    name: str
    owner: str
    build: Callable[[], nnx.Module]
    layers: int | None = None
    prepare: Callable | None = None
    borrows: tuple[tuple[str, str, str], ...] = ()
    holds: Callable[[str], bool] | None = None
    adapts: str = ""
    by_position: bool = False


@dataclasses.dataclass(frozen=True)
class Module:
    """A module's pieces in order, and the modules whose outputs its first piece takes."""

    name: str
    pieces: tuple[Piece, ...]
    inputs: tuple[str, ...] = ()

    @property
    def computed(self) -> tuple[Piece, ...]:
        """The pieces that compute, in order; adapters lend them their parameters."""
        return tuple(piece for piece in self.pieces if not piece.adapts)

    def adapters(self, name: str) -> str:
        """Name of the piece that is the adapters of another; empty where that has none."""
        return next((piece.name for piece in self.pieces if piece.adapts == name), "")
