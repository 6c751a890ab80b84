"""The arrays of a device between two ticks of a pipeline that one program runs, or two."""

from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.varying import make_varying, varying_axes
from sharding.runtime.stages.definition import Arrays
from sharding.runtime.stages.tick_computations import TickComputations, abstract_results
from sharding.schedules.lockstep import TickTable
from sharding.trees import Tree

T = TypeVar("T")


class LeavingArrays(NamedTuple):
    """Inputs of the pieces behind the stack, for microbatches whose outputs' gradients are to come.

    Each pipeline rank keeps some of them (`TickTable.keeper`).

    Attributes:
        x: Activations `[m / p, r, q, d]`.
        gradient: The gradient of the losses with respect to them.
    """

    x: jax.Array
    gradient: jax.Array


class SavedState(NamedTuple):
    """Arrays that forwards leave for backwards, which may be another program.

    Attributes:
        inputs: Input activations of chunks, `[slots, r, q, d]`.
        residuals: Residuals of forwards, `[slots, ...]` each.
        leaving: The leaving arrays where backwards are apart from forwards; else None.
    """

    inputs: jax.Array
    residuals: list[jax.Array]
    leaving: LeavingArrays | None


class PipelineState(NamedTuple):
    """The arrays of a device between two ticks.

    Attributes:
        saved_state: Arrays that forwards leave for backwards.
        gradients: Gradients of chunks' outputs, `[slots, r, q, d]`; None without backwards.
        input_gradient: Gradient that the backward of the last tick sends back, `[r, q, d]`; None without backwards.
        losses: Losses of the pieces behind the stack by name, `[m]`, the same on all pipeline ranks.
        layer_losses: Losses of this rank's layers, likewise.
        auxiliary_metrics: `[m, r, ...]` by name; empty in training.
        outputs: `[m, r, ...]` by channel, the same on all pipeline ranks.
        parameter_gradients: float32, summed over the microbatches so far, of the parameters that train.
        input_gradients: `[m, r, ...]` by channel.
    """

    saved_state: SavedState
    gradients: Any
    input_gradient: Any
    losses: Arrays
    layer_losses: Arrays
    auxiliary_metrics: Arrays
    outputs: Arrays
    parameter_gradients: Tree
    input_gradients: Arrays

    def with_saved_state(self, **fields: Any) -> "PipelineState":
        """Returns this state with other arrays in `saved_state`."""
        return self._replace(saved_state=self.saved_state._replace(**fields))


def initial_state(
    computations: TickComputations,
    table: TickTable,
    x: jax.Array,
    program: jax.stages.Traced,
    *,
    keeps_metrics: bool,
) -> PipelineState:
    """The state before the first tick.

    Args:
        computations: The computations of a tick.
        table: Gives the number of slots.
        x: Activations of zero, as they enter a chunk.
        program: The traced forward of a chunk.
        keeps_metrics: Whether auxiliary metrics are kept.
    """
    has_backward, count = table.order != "forward_only", table.microbatches

    def buffer(size: int, abstract: Any) -> jax.Array:
        zeros = jnp.zeros((size, *abstract.shape), abstract.dtype)
        return make_varying(zeros, tuple(varying_axes(abstract) | set(computations.activation_axes)))

    def by_microbatch(arrays: dict[str, Any], axes: tuple[str, ...]) -> Arrays:
        return {
            name: make_varying(jnp.zeros((count, *array.shape), array.dtype), axes) for name, array in arrays.items()
        }

    forward = abstract_results(program)
    left = jax.eval_shape(lambda x: computations.head(jnp.zeros((), jnp.int32), x).output, x)
    trained = {key: computations.parameters[key] for key in sorted(computations.definition.trained_keys)}
    kept = table.kept_size
    return PipelineState(
        saved_state=SavedState(
            buffer(table.inputs.size, x),
            [buffer(table.residuals.size, residual) for residual in forward.residuals],
            LeavingArrays(buffer(kept, x), buffer(kept, x)) if table.order == "gpipe" else None,
        ),
        gradients=buffer(table.gradients.size, x) if has_backward else None,
        input_gradient=x if has_backward else None,
        losses=by_microbatch(left.losses, computations.replicas),
        layer_losses=by_microbatch(forward.losses, (*computations.pipeline, *computations.replicas)),
        auxiliary_metrics=by_microbatch(left.auxiliary_metrics, computations.data) if keeps_metrics else {},
        outputs=by_microbatch(left.outputs, computations.data),
        parameter_gradients=like(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), trained), trained),
        input_gradients={
            name: jnp.zeros_like(computations.inputs[name]) for name in sorted(computations.backwards.inputs)
        },
    )


def resumed(state: PipelineState, saved_state: SavedState, parameter_gradients: Tree) -> PipelineState:
    """Returns the state before backwards that are apart from forwards, with the arrays that the forwards left."""
    return state._replace(
        saved_state=like(saved_state, state.saved_state),
        parameter_gradients=like(parameter_gradients, state.parameter_gradients),
    )


def read_slot(buffer: jax.Array, slot: jax.Array) -> jax.Array:
    """Reads the array of a slot; of the first slot where there is none."""
    return lax.dynamic_index_in_dim(buffer, jnp.maximum(slot, 0), keepdims=False)


def write_slot(buffer: jax.Array, slot: jax.Array, x: Any) -> jax.Array:
    """Returns the buffer with x in a slot, or the buffer as it was where there is no slot."""
    new = jnp.where(slot >= 0, x, read_slot(buffer, slot))
    return lax.dynamic_update_index_in_dim(buffer, new, jnp.maximum(slot, 0), 0)


def write_slot_of_all(buffer: jax.Array, slot: jax.Array, x: jax.Array) -> jax.Array:
    """Returns the buffer with x in a slot, where every rank has a slot."""
    return lax.dynamic_update_index_in_dim(buffer, make_varying(x, tuple(varying_axes(buffer))), slot, 0)


def set_at(arrays: Arrays, microbatch: jax.Array, new: Arrays) -> Arrays:
    """Returns arrays `[m, ...]` by name, in which the entries of a microbatch are set."""
    return {name: array.at[microbatch].set(new[name]) for name, array in arrays.items()}


def add_to(totals: Tree, new: Tree) -> Tree:
    """Adds new gradients of some of the keys to gradients in float32."""
    added = {
        key: jax.tree.map(lambda total, addend: total + addend.astype(jnp.float32), totals[key], tree)
        for key, tree in new.items()
    }
    return {**totals, **added}


def like(tree: T, other: T) -> T:
    """The tree, its leaves marked as varying over the axes of the other's: what a loop carries keeps its type."""
    return jax.tree.map(lambda leaf, wanted: make_varying(leaf, tuple(varying_axes(wanted))), tree, other)
