"""The loop over ticks of a pipeline that is one program, as one of its devices runs it."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Int

from pallas_kernels.varying import make_varying, varying_axes
from sharding.runtime.stages.definition import Arrays
from sharding.runtime.stages.pipeline_sections import (
    DividedLayers,
    PipelineSections,
    abstract_results,
    divide_layers_backward,
    run_traced,
)
from sharding.schedules.lockstep import TickOps, TickSegment, TickTable
from sharding.trees import Tree

T = TypeVar("T")


class PipelineState(NamedTuple):
    """What a device has between two ticks.

    Attributes:
        inputs, gradients: Activations in flight and gradients of outputs, `[slots, r, q, d]`; None without backwards.
        residuals: What forwards saved, `[slots, ...]` each.
        wgrad_operands: What backwards saved for wgrads, likewise; empty where they compute all gradients.
        arrived, arrived_back: What the neighbours sent in the last tick, `[r, q, d]`; None likewise.
        losses: Of the pieces behind the stack by name, `[m]`, the same on all pipeline ranks.
        layer_losses: Of this rank's layers, likewise.
        auxiliary_metrics: `[m, r, ...]` by name; empty in training.
        parameter_gradients: float32, summed over the microbatches so far, of the parameters that train.
        input_gradients: `[m, r, ...]` by channel.
    """

    inputs: jax.Array
    gradients: Any
    residuals: list[jax.Array]
    wgrad_operands: list[jax.Array]
    arrived: jax.Array
    arrived_back: Any
    losses: Arrays
    layer_losses: Arrays
    auxiliary_metrics: Arrays
    parameter_gradients: Tree
    input_gradients: Arrays


class _Row(NamedTuple):
    """This rank's entries of a table in a tick (those of `TickTable`), and the microbatches that all ranks know of."""

    forward: Any
    backward: Any
    wgrad: Any
    inputs: Any
    residuals: Any
    gradients: Any
    wgrad_operands: Any
    first_forward: Any
    last_forward: Any
    first_backward: Any


class _Op(NamedTuple):
    runs: Any
    microbatch: Any
    chunk: Any


class _Slots(NamedTuple):
    arrival: Any
    forward: Any
    backward: Any
    wgrad: Any


class PipelinePass:
    """Runs the ticks of a table.

    Args:
        sections: What is computed in a tick.
        table: Which microbatch, where, when.
        keeps_metrics: Whether auxiliary metrics are kept, as an evaluation needs them.
    """

    def __init__(self, sections: PipelineSections, table: TickTable, *, keeps_metrics: bool) -> None:
        self._sections, self._table, self._keeps_metrics = sections, table, keeps_metrics
        x = jnp.zeros_like(sections.enter(jnp.zeros((), jnp.int32)))
        self._x = make_varying(x, sections.activation_axes)
        self._program = sections.trace_layers(self._x)
        self._divided: DividedLayers | None = None
        if table.wgrads.runs.any():
            self._divided = divide_layers_backward(sections, self._program, self._x)

    def run(self) -> PipelineState:
        """The state after all ticks."""
        state, rows = self._initial_state(), self._rows()
        for segment in self._table.segments():
            of_segment = jax.tree.map(lambda column, at=segment: column[at.start : at.end], rows)
            state, _ = lax.scan(functools.partial(self._tick, segment), state, of_segment)
        return state

    # ------------------------------------------------------------------ before the first tick

    def _rows(self) -> _Row:
        table = self._table

        def of_rank(entries: np.ndarray) -> jax.Array:
            return jnp.take(jnp.asarray(entries), self._sections.rank, axis=1)

        def op(ops: TickOps) -> _Op:
            return _Op(of_rank(ops.runs), of_rank(ops.microbatch), of_rank(ops.chunk))

        slots = (
            _Slots(of_rank(each.arrival), of_rank(each.forward), of_rank(each.backward), of_rank(each.wgrad))
            for each in (table.inputs, table.residuals, table.gradients, table.wgrad_operands)
        )
        shared = (table.first_forwards, table.last_forwards, table.first_backwards)
        ops = (op(each) for each in (table.forwards, table.backwards, table.wgrads))
        return _Row(*ops, *slots, *map(jnp.asarray, shared))

    def _initial_state(self) -> PipelineState:
        table, sections, x = self._table, self._sections, self._x
        has_backward = sections.backwards.layers

        def buffer(size: int, abstract: Any) -> jax.Array:
            zeros = jnp.zeros((size, *abstract.shape), abstract.dtype)
            return make_varying(zeros, tuple(varying_axes(abstract) | set(sections.activation_axes)))

        def by_microbatch(arrays: dict[str, Any], axes: tuple[str, ...]) -> Arrays:
            count = table.microbatches
            return {
                name: make_varying(jnp.zeros((count, *each.shape), each.dtype), axes) for name, each in arrays.items()
            }

        abstract = abstract_results(self._program)
        saved_for_wgrads = self._divided.saved if self._divided else []
        left = jax.eval_shape(lambda x: sections.leave(jnp.zeros((), jnp.int32), x)[:2], x)
        trained = {key: sections.parameters[key] for key in sorted(sections.definition.trained_keys)}
        return PipelineState(
            inputs=buffer(table.inputs.size, x),
            gradients=buffer(table.gradients.size, x) if has_backward else None,
            residuals=[buffer(table.residuals.size, each) for each in abstract.residuals],
            wgrad_operands=[buffer(table.wgrad_operands.size, each) for each in saved_for_wgrads],
            arrived=x,
            arrived_back=x if has_backward else None,
            losses=by_microbatch(left[0], sections.replicas),
            layer_losses=by_microbatch(abstract.losses, (*sections.pipeline, *sections.replicas)),
            auxiliary_metrics=by_microbatch(left[1], sections.data) if self._keeps_metrics else {},
            parameter_gradients=_like(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), trained), trained),
            input_gradients={name: jnp.zeros_like(sections.inputs[name]) for name in sorted(sections.backwards.inputs)},
        )

    # ------------------------------------------------------------------ a tick

    def _tick(self, segment: TickSegment, state: PipelineState, row: _Row) -> tuple[PipelineState, None]:
        table, before = self._table, state
        if self._some(table.inputs.arrival, segment):
            state = state._replace(inputs=_write(state.inputs, row.inputs.arrival, state.arrived))
        if self._some(table.gradients.arrival, segment):
            state = state._replace(gradients=_write(state.gradients, row.gradients.arrival, state.arrived_back))
        if segment.has_forwards:
            state = self._forward(segment, state, row)
        if segment.has_backwards:
            state = self._backward(segment, state, row)
        if segment.has_wgrads:
            state = self._wgrad(state, row)
        return _like(state, before), None

    @staticmethod
    def _some(entries: Int[np.ndarray, "t ..."], segment: TickSegment) -> bool:
        """Whether a tick of a segment has an entry."""
        return bool((entries[segment.start : segment.end] >= 0).any())

    def _where_given(
        self, entries: Int[np.ndarray, " t"], segment: TickSegment, entry: jax.Array, run: Callable[[T], T], state: T
    ) -> T:
        """`run(state)` in ticks with an entry, which is the same on all ranks; the state itself in others."""
        if not self._some(entries, segment):
            return state
        if (entries[segment.start : segment.end] >= 0).all():
            return _like(run(state), state)
        return lax.cond(entry >= 0, lambda state: _like(run(state), state), lambda state: state, state)

    def _forward(self, segment: TickSegment, state: PipelineState, row: _Row) -> PipelineState:
        sections, table, op = self._sections, self._table, row.forward
        x = _read(state.inputs, row.inputs.forward)
        entering = self._where_given(
            table.first_forwards,
            segment,
            row.first_forward,
            lambda _: sections.enter(row.first_forward),
            make_varying(jnp.zeros(x.shape, x.dtype), tuple(varying_axes(x) - set(sections.pipeline))),
        )
        x = jnp.where(op.runs & sections.is_rank(0) & (op.chunk == 0), entering, x)
        state = state._replace(inputs=_write(state.inputs, row.inputs.forward, x))
        result = run_traced(self._program, sections.layers_operands(op.microbatch, op.chunk, x))
        layer_losses = {
            name: losses.at[op.microbatch].add(jnp.where(op.runs, result.losses[name], 0.0))
            for name, losses in state.layer_losses.items()
        }
        slot = row.residuals.forward
        residuals = [
            lax.dynamic_update_index_in_dim(buffer, make_varying(saved, tuple(varying_axes(buffer))), slot, 0)
            for buffer, saved in zip(state.residuals, result.residuals, strict=True)
        ]
        state = state._replace(
            layer_losses=layer_losses, residuals=residuals, arrived=self._send(result.output, steps=1)
        )
        leave = functools.partial(self._leave, row, result.output)
        return self._where_given(table.last_forwards, segment, row.last_forward, leave, state)

    def _leave(self, row: _Row, output: jax.Array, state: PipelineState) -> PipelineState:
        """The pieces behind the stack, of the microbatch whose forward has run on the last rank."""
        number = row.last_forward
        left = self._sections.leave(number, output)
        state = state._replace(
            losses={name: losses.at[number].set(left.losses[name]) for name, losses in state.losses.items()},
            auxiliary_metrics={
                name: metrics.at[number].set(left.auxiliary_metrics[name])
                for name, metrics in state.auxiliary_metrics.items()
            },
            parameter_gradients=_add(state.parameter_gradients, left.parameter_gradients),
        )
        if state.gradients is None:
            return state
        return state._replace(gradients=_write(state.gradients, row.gradients.forward, left.gradient))

    def _backward(self, segment: TickSegment, state: PipelineState, row: _Row) -> PipelineState:
        sections, op = self._sections, row.backward
        slots = (row.inputs.backward, row.residuals.backward, row.gradients.backward)
        operands = self._backward_operands(state, op, *slots)
        if self._divided is None:
            new_gradients, input_gradient = sections.layers_backward(self._program, *operands)
            state = self._add_of_chunk(state, op, new_gradients)
        else:
            (*_, input_gradient), saved = self._divided.program.early(jax.tree.leaves(operands))
            slot = row.wgrad_operands.backward
            buffers = [_write(buffer, slot, each) for buffer, each in zip(state.wgrad_operands, saved, strict=True)]
            state = state._replace(wgrad_operands=buffers)
        state = state._replace(arrived_back=self._send(input_gradient, steps=-1))
        if not sections.backwards.enter:
            return state
        enter = functools.partial(self._enter_backward, row, input_gradient)
        return self._where_given(self._table.first_backwards, segment, row.first_backward, enter, state)

    def _backward_operands(
        self, state: PipelineState, op: _Op, inputs: jax.Array, residuals: jax.Array, gradients: jax.Array
    ) -> tuple[tuple[Any, ...], list[jax.Array], jax.Array]:
        """What the backward of a chunk takes, given the slots."""
        operands = self._sections.layers_operands(op.microbatch, op.chunk, _read(state.inputs, inputs))
        saved = [_read(buffer, residuals) for buffer in state.residuals]
        return operands, saved, _read(state.gradients, gradients)

    def _wgrad(self, state: PipelineState, row: _Row) -> PipelineState:
        """The gradients of a chunk's weights, whose backward has run in this tick or before."""
        assert self._divided is not None
        op, slot = row.wgrad, row.wgrad_operands.wgrad
        operands = self._backward_operands(state, op, row.inputs.wgrad, row.residuals.wgrad, row.gradients.wgrad)
        saved = [_read(buffer, slot) for buffer in state.wgrad_operands]
        *leaves, _ = self._divided.program.late(jax.tree.leaves(operands), saved)
        trained, *_ = operands[0]
        return self._add_of_chunk(state, op, jax.tree.unflatten(jax.tree.structure(trained), leaves))

    def _add_of_chunk(self, state: PipelineState, op: _Op, new: Tree) -> PipelineState:
        """Adds the gradients of a chunk's layers, where an op has run."""
        sections = self._sections
        first = op.chunk * sections.definition.chunk_layers

        def add(total: jax.Array, new: jax.Array) -> jax.Array:
            new = sections.of_chunk(op.chunk, total) + jnp.where(op.runs, new.astype(jnp.float32), 0.0)
            return new if new.shape == total.shape else lax.dynamic_update_slice_in_dim(total, new, first, 0)

        totals = state.parameter_gradients
        added = {key: jax.tree.map(add, totals[key], of_key) for key, of_key in new.items()}
        return state._replace(parameter_gradients={**totals, **added})

    def _enter_backward(self, row: _Row, gradient: jax.Array, state: PipelineState) -> PipelineState:
        """The backward of the pieces before the stack, of the microbatch that has come back to the first rank."""
        number = row.first_backward
        new_gradients, of_inputs = self._sections.enter_backward(number, gradient)
        return state._replace(
            parameter_gradients=_add(state.parameter_gradients, new_gradients),
            input_gradients={
                name: gradients.at[number].set(of_inputs[name]) for name, gradients in state.input_gradients.items()
            },
        )

    def _send(self, x: jax.Array, *, steps: int) -> jax.Array:
        """Sends to the next rank, or to the one before; from one end to the other only where ranks have more chunks."""
        ranks = self._table.ranks
        pairs = [(rank, (rank + steps) % ranks) for rank in range(ranks)]
        if self._table.chunks == 1:
            pairs = [(source, target) for source, target in pairs if target - source == steps]
        return lax.ppermute(x, self._sections.pipeline, pairs) if pairs else jnp.zeros_like(x)


def _read(buffer: jax.Array, slot: jax.Array) -> jax.Array:
    return lax.dynamic_index_in_dim(buffer, jnp.maximum(slot, 0), keepdims=False)


def _write(buffer: jax.Array, slot: jax.Array, x: Any) -> jax.Array:
    """The buffer with x in a slot; as it was where there is no slot."""
    new = jnp.where(slot >= 0, x, _read(buffer, slot))
    return lax.dynamic_update_index_in_dim(buffer, new, jnp.maximum(slot, 0), 0)


def _add(totals: Tree, new: Tree) -> Tree:
    """Gradients in float32 with new ones, of some of the keys."""
    added = {
        key: jax.tree.map(lambda total, of_key: total + of_key.astype(jnp.float32), totals[key], tree)
        for key, tree in new.items()
    }
    return {**totals, **added}


def _like(tree: T, other: T) -> T:
    """The tree, its leaves marked as varying over the axes of the other's: what a loop carries keeps its type."""
    return jax.tree.map(lambda leaf, like: make_varying(leaf, tuple(varying_axes(like))), tree, other)
