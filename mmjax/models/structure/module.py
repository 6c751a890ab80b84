"""Modules and their pieces, and the records that pieces return; the engine places and runs models by them."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
from flax import nnx

ModuleInputs = dict[str, jax.Array]
"""The arrays of one microbatch that a module reads, by name; the first dimension is rows."""

ActivationsByModule = dict[str, jax.Array]
"""Activations that pass between modules, by the name of the module at the other end; the first dimension is rows."""


class LayerOutput(NamedTuple):
    """Output of a layer that has a loss of its own, such as the load-balancing loss of experts.

    Attributes:
        x: Activations for the next layer.
        auxiliary_loss: Scalar, summed over the local rows and already divided by the global batch's normaliser.
    """

    x: jax.Array
    auxiliary_loss: jax.Array


class ModuleOutput(NamedTuple):
    """Output of the last piece of a module.

    Attributes:
        activations: Activations by the name of the module that takes them.
        loss: Scalar, summed over the local rows and already divided by the global batch's normaliser; None if the
            module has no loss.
        auxiliary_metrics: Arrays for evaluation, rows first; training does not use them.
        auxiliary_losses: Further losses by name, summed and normalised likewise: auxiliary losses of the loss function
            and of the module's layers (`LayerOutput`).
    """

    activations: ActivationsByModule
    loss: jax.Array | None = None
    auxiliary_metrics: Mapping[str, jax.Array] = {}
    auxiliary_losses: Mapping[str, jax.Array] = {}


BALANCING_LOSS = "balance"
"""Name of the auxiliary loss of a module's layers, which is the load-balancing loss of experts."""


def auxiliary_loss_name(module: str, name: str) -> str:
    """Name under which an auxiliary loss of a module is reported; the module's own loss has the module's name."""
    return f"{module}/{name}"


def module_losses(module: str, output: ModuleOutput) -> dict[str, jax.Array]:
    """A module's loss, if it has one, and its auxiliary losses, by the names under which they are reported."""
    loss = {} if output.loss is None else {module: output.loss}
    return loss | {auxiliary_loss_name(module, name): loss for name, loss in output.auxiliary_losses.items()}


class PieceModule(nnx.Module):
    """A Flax module that a piece is built from.

    Attributes:
        batch_keys: Names of the batch arrays that it reads.
    """

    batch_keys: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Piece:
    """A section of a module: a single layer that one pipeline stage holds whole, or a stack of equal layers.

    A pipeline may cut a stack between any two of its layers, and between two stacks that follow each other.

    Attributes:
        name: Name, unique within the module.
        part: Name under which a user trains or freezes it, such as `vision` or `vision_projector`.
        build: Builds the Flax module (of one layer, for a stack).
        layers: Number of layers of a stack; None for a single layer.
        shared_inputs: Computes the inputs that all layers of a stack share, at this rank's positions, from the batch,
            which has whole rows, and the axes; called once for each stage. None for the batch itself.
        layer_inputs: `(shared inputs, number of the layer, which may be traced) -> inputs of that layer`; None if every
            layer reads all shared inputs.
        tied_parameters: Parameters owned by another piece: (path here, name of the other piece, path there).
        parameter_filter: Whether this piece owns a parameter of the Flax module, by its path; None for all of them.
        adapter_of: Name of the piece whose LoRA adapters this piece holds; empty for a piece that computes by itself.
        sequence_parallel: Whether the positions of its input and output activations `[r, s, d]` may be divided over
            context-parallel and tensor ranks, where the plan asks for that. Inputs and outputs of a module are never
            divided.
    """

    name: str
    part: str
    build: Callable[[], PieceModule]
    layers: int | None = None
    shared_inputs: Callable[..., Any] | None = None
    layer_inputs: Callable[[Any, Any], Any] | None = None
    tied_parameters: tuple[tuple[str, str, str], ...] = ()
    parameter_filter: Callable[[str], bool] | None = None
    adapter_of: str = ""
    sequence_parallel: bool = False

    def inputs_of_layer(self, shared: Any, layer: Any) -> Any:
        """Returns the inputs of one layer, given the shared inputs and its number."""
        return self.layer_inputs(shared, layer) if self.layer_inputs else shared


@dataclasses.dataclass(frozen=True)
class Module:
    """An encoder, the backbone or a generator.

    Attributes:
        name: Name, unique within the model.
        pieces: Pieces in the order in which they compute; adapters follow the piece that they adapt.
        inputs: Names of the modules whose activations the first piece takes.
    """

    name: str
    pieces: tuple[Piece, ...]
    inputs: tuple[str, ...] = ()

    @property
    def compute_pieces(self) -> tuple[Piece, ...]:
        """The pieces that compute, in order.

        Adapter pieces have parameters but no forward; the piece that they adapt uses them.
        """
        return tuple(piece for piece in self.pieces if not piece.adapter_of)

    def layers_before(self, piece: Piece) -> int:
        """Counts the layers of the stacks that compute before a stack; adapters count as the piece that they adapt."""
        name = piece.adapter_of or piece.name
        names = [compute_piece.name for compute_piece in self.compute_pieces]
        return sum(compute_piece.layers or 0 for compute_piece in self.compute_pieces[: names.index(name)])

    def adapter_piece(self, name: str) -> str:
        """Name of the piece that holds the adapters of the piece `name`; empty if it has none."""
        return next((piece.name for piece in self.pieces if piece.adapter_of == name), "")
