"""The loop over ticks of a pipeline that is one program, as one of its devices runs it.

`CompiledPipeline` traces the loop in its programs.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Int

from pallas_kernels.varying import make_varying, varying_axes
from sharding.runtime.stages.pipeline_state import (
    LeavingArrays,
    PipelineState,
    add_to,
    initial_state,
    like,
    read_slot,
    set_at,
    write_slot,
    write_slot_of_all,
)
from sharding.runtime.stages.tick_computations import TickComputations, run_traced
from sharding.schedules.lockstep import TickOps, TickSegment, TickSlots, TickTable
from sharding.trees import Tree

T = TypeVar("T")


class _Row(NamedTuple):
    """This rank's entries of `TickTable` in a tick, and the microbatches that all ranks know of."""

    forward: Any
    backward: Any
    inputs: Any
    residuals: Any
    gradients: Any
    first_forward: Any
    last_forward: Any
    first_backward: Any
    last_backward: Any
    next_arrival: Any


class _Op(NamedTuple):
    runs: Any
    microbatch: Any
    chunk: Any


class _Slots(NamedTuple):
    arrival: Any
    forward: Any
    backward: Any


class PipelinePass:
    """Runs the ticks of a table, or some of them.

    Args:
        computations: The computations of a tick.
        table: The microbatch of every op, by tick and rank.
        segments: The ticks to run.
        keeps_metrics: Whether auxiliary metrics are kept, as an evaluation needs them.
    """

    def __init__(
        self,
        computations: TickComputations,
        table: TickTable,
        segments: Sequence[TickSegment],
        *,
        keeps_metrics: bool = False,
    ) -> None:
        self._computations, self._table, self._segments = computations, table, segments
        self._keeps_metrics = keeps_metrics
        # Where what a forward sends is kept: by the tick that sends it, not by the tick in which it can be used.
        self._next_arrivals = np.roll(table.inputs.arrival, -1, axis=0)
        x = jnp.zeros_like(computations.embed(jnp.zeros((), jnp.int32)))
        self._x = make_varying(x, computations.activation_axes)
        self._program = computations.trace_layers(self._x)

    def initial_state(self) -> PipelineState:
        """The state before the first tick."""
        return initial_state(self._computations, self._table, self._x, self._program, keeps_metrics=self._keeps_metrics)

    def run(self, state: PipelineState) -> PipelineState:
        """Returns the state after the ticks, given the state before the first of them."""
        rows = self._rows()
        for segment in self._segments:
            segment_rows = jax.tree.map(lambda column, at=segment: column[at.start : at.end], rows)
            state, _ = lax.scan(functools.partial(self._tick, segment), state, segment_rows)
        return state

    # ------------------------------------------------------------------ before the first tick

    def _rows(self) -> _Row:
        table = self._table

        def rank_column(entries: np.ndarray) -> jax.Array:
            return jnp.take(jnp.asarray(entries), self._computations.rank, axis=1)

        def op(ops: TickOps) -> _Op:
            return _Op(rank_column(ops.runs), rank_column(ops.microbatch), rank_column(ops.chunk))

        def slots(tick_slots: TickSlots) -> _Slots:
            return _Slots(
                rank_column(tick_slots.arrival), rank_column(tick_slots.forward), rank_column(tick_slots.backward)
            )

        return _Row(
            forward=op(table.forwards),
            backward=op(table.backwards),
            inputs=slots(table.inputs),
            residuals=slots(table.residuals),
            gradients=slots(table.gradients),
            first_forward=jnp.asarray(table.first_forwards),
            last_forward=jnp.asarray(table.last_forwards),
            first_backward=jnp.asarray(table.first_backwards),
            last_backward=jnp.asarray(table.last_backwards),
            next_arrival=rank_column(self._next_arrivals),
        )

    # ------------------------------------------------------------------ a tick

    def _tick(self, segment: TickSegment, state: PipelineState, row: _Row) -> tuple[PipelineState, None]:
        before, arrived, arrived_back = state, None, None
        if self._some(self._table.gradients.arrival, segment):
            arrived_back = self._send(state.input_gradient, steps=-1)
        if segment.has_forwards:
            state, output = self._forward(segment, state, row)
            if self._some(self._next_arrivals, segment):
                arrived = self._send(output, steps=1)
            head = functools.partial(self._head, row, output)
            state = self._where_given(self._table.last_forwards, segment, row.last_forward, head, state)
        if arrived_back is not None:
            state = state._replace(gradients=write_slot(state.gradients, row.gradients.arrival, arrived_back))
        if segment.has_backwards:
            state = self._backward(segment, state, row)
        if arrived is not None:
            state = state.with_saved_state(inputs=write_slot(state.saved_state.inputs, row.next_arrival, arrived))
        return like(state, before), None

    @staticmethod
    def _some(entries: Int[np.ndarray, "t ..."], segment: TickSegment) -> bool:
        """Whether a tick of a segment has an entry."""
        return bool((entries[segment.start : segment.end] >= 0).any())

    def _where_given(
        self, entries: Int[np.ndarray, " t"], segment: TickSegment, entry: jax.Array, run: Callable[[T], T], state: T
    ) -> T:
        """Returns `run(state)` in ticks with an entry, which all ranks have alike, and the state itself in others."""
        if not self._some(entries, segment):
            return state
        if (entries[segment.start : segment.end] >= 0).all():
            return like(run(state), state)
        return lax.cond(entry >= 0, lambda state: like(run(state), state), lambda state: state, state)

    def _forward(self, segment: TickSegment, state: PipelineState, row: _Row) -> tuple[PipelineState, jax.Array]:
        """Runs the forward of a chunk; returns the state and the chunk's output."""
        computations, table, op = self._computations, self._table, row.forward
        x = read_slot(state.saved_state.inputs, row.inputs.forward)
        entering = self._where_given(
            table.first_forwards,
            segment,
            row.first_forward,
            lambda _: computations.embed(row.first_forward),
            make_varying(jnp.zeros(x.shape, x.dtype), tuple(varying_axes(x) - set(computations.pipeline))),
        )
        x = jnp.where(op.runs & computations.is_rank(0) & (op.chunk == 0), entering, x)
        state = state.with_saved_state(inputs=write_slot(state.saved_state.inputs, row.inputs.forward, x))
        result = run_traced(self._program, computations.layers_operands(op.microbatch, op.chunk, x))
        layer_losses = {
            name: losses.at[op.microbatch].add(jnp.where(op.runs, result.losses[name], 0.0))
            for name, losses in state.layer_losses.items()
        }
        # Without a condition where every rank has a slot: it would read what it overwrites.
        write = write_slot if segment.lacks_slots else write_slot_of_all
        residuals = [
            write(buffer, row.residuals.forward, saved)
            for buffer, saved in zip(state.saved_state.residuals, result.residuals, strict=True)
        ]
        return state.with_saved_state(residuals=residuals)._replace(layer_losses=layer_losses), result.output

    def _head(self, row: _Row, output: jax.Array, state: PipelineState) -> PipelineState:
        """The pieces behind the stack, of the microbatch whose forward has run on the last rank."""
        number = row.last_forward
        x = self._computations.from_rank(self._table.ranks - 1, output)
        (outputs, losses, metrics), parameter_gradients, gradient = self._computations.head(number, x)
        state = state._replace(
            losses=set_at(state.losses, number, losses),
            auxiliary_metrics=set_at(state.auxiliary_metrics, number, metrics),
            outputs=set_at(state.outputs, number, outputs),
            parameter_gradients=add_to(state.parameter_gradients, parameter_gradients),
        )
        if self._table.order == "1f1b":
            return state._replace(gradients=write_slot(state.gradients, row.gradients.forward, gradient))
        if self._table.order == "forward_only":
            return state
        assert state.saved_state.leaving is not None
        keeper, slot = self._table.keeper(number)
        slot = jnp.where(self._computations.is_rank(keeper), slot, -1)
        kept = (
            write_slot(buffer, slot, array)
            for buffer, array in zip(state.saved_state.leaving, (x, gradient), strict=True)
        )
        return state.with_saved_state(leaving=LeavingArrays(*kept))

    def _head_backward(self, row: _Row, state: PipelineState) -> PipelineState:
        """The backward of the pieces behind the stack, of the microbatch whose backward begins on the last rank."""
        computations, number = self._computations, row.last_backward
        assert state.saved_state.leaving is not None
        keeper, slot = self._table.keeper(number)
        x, loss_gradient = (
            computations.from_rank(keeper, read_slot(buffer, slot)) for buffer in state.saved_state.leaving
        )
        parameter_gradients, output_gradient = computations.head_backward(number, x)
        slot = jnp.where(computations.is_rank(self._table.ranks - 1), row.gradients.backward, -1)
        return state._replace(
            gradients=write_slot(state.gradients, slot, loss_gradient + output_gradient),
            parameter_gradients=add_to(state.parameter_gradients, parameter_gradients),
        )

    def _backward(self, segment: TickSegment, state: PipelineState, row: _Row) -> PipelineState:
        computations, op = self._computations, row.backward
        if self._table.order == "gpipe":
            head = functools.partial(self._head_backward, row)
            state = self._where_given(self._table.last_backwards, segment, row.last_backward, head, state)
        operands = computations.layers_operands(
            op.microbatch, op.chunk, read_slot(state.saved_state.inputs, row.inputs.backward)
        )
        saved = [read_slot(buffer, row.residuals.backward) for buffer in state.saved_state.residuals]
        gradient = read_slot(state.gradients, row.gradients.backward)
        new_gradients, input_gradient = computations.layers_backward(self._program, operands, saved, gradient)
        state = self._add_of_chunk(state, op, new_gradients)._replace(input_gradient=input_gradient)
        if not computations.backwards.embed:
            return state
        embed = functools.partial(self._embed_backward, row, input_gradient)
        return self._where_given(self._table.first_backwards, segment, row.first_backward, embed, state)

    def _add_of_chunk(self, state: PipelineState, op: _Op, new: Tree) -> PipelineState:
        """Adds the gradients of a chunk's layers, where an op has run."""
        computations = self._computations
        first = op.chunk * computations.definition.chunk_layers

        def add(total: jax.Array, new: jax.Array) -> jax.Array:
            new = computations.of_chunk(op.chunk, total) + jnp.where(op.runs, new.astype(jnp.float32), 0.0)
            return new if new.shape == total.shape else lax.dynamic_update_slice_in_dim(total, new, first, 0)

        totals = state.parameter_gradients
        added = {key: jax.tree.map(add, totals[key], gradients) for key, gradients in new.items()}
        return state._replace(parameter_gradients={**totals, **added})

    def _embed_backward(self, row: _Row, gradient: jax.Array, state: PipelineState) -> PipelineState:
        """The backward of the pieces before the stack, of the microbatch that has come back to the first rank."""
        number = row.first_backward
        new_gradients, input_gradients = self._computations.embed_backward(number, gradient)
        return state._replace(
            parameter_gradients=add_to(state.parameter_gradients, new_gradients),
            input_gradients=set_at(state.input_gradients, number, input_gradients),
        )

    def _send(self, x: jax.Array, *, steps: int) -> jax.Array:
        """Sends to the next rank, or to the one before; from one end to the other only where ranks have more chunks."""
        ranks = self._table.ranks
        pairs = [(rank, (rank + steps) % ranks) for rank in range(ranks)]
        if self._table.chunks == 1:
            pairs = [(source, target) for source, target in pairs if target - source == steps]
        return lax.ppermute(x, self._computations.pipeline, pairs) if pairs else jnp.zeros_like(x)
