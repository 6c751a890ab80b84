"""A unit's whole pipeline as one jitted `jax.shard_map` program a step, over pipeline ranks and the axes of stages.

Where the unit feeds others that return gradients, forwards and backwards are a program each, since the first gradient
comes back after the last output has left.

A program goes through the ticks of a table (`sharding.schedules.lockstep`) by `lax.scan`. In a tick, all ranks

1. run the pieces before the stack for one microbatch, together;
2. run a forward of their chunk, and send its output to the next rank by `lax.ppermute`, which keeps it at the end of
   the tick;
3. run the pieces behind the stack for one microbatch, together, forward and backward;
4. run a backward of their chunk; the gradient of its input is sent to the rank before at the start of the next tick;
5. run the backward of the pieces before the stack for one microbatch, together;
6. compute the gradients of a chunk's weights, where the schedule leaves these for later.

A rank without a forward or backward in a tick runs one nevertheless, on what its slots happen to hold, and nothing of
the result is kept: collectives need all ranks. Ticks in which no rank has a forward, or none a backward, are other
scans, without them. What is in flight is in slots, as many as the rank that holds most needs. Gradients are summed on
each replica, and reduced once a step by another program (`master_weights.py`).
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from sharding.axes import Axes
from sharding.runtime.stages.definition import (
    Arrays,
    BackwardResult,
    Microbatches,
    PipelineDefinition,
    StageOutput,
    module_of,
)
from sharding.runtime.stages.mesh_programs import MeshPrograms
from sharding.runtime.stages.named_programs import named_jit
from sharding.runtime.stages.pipeline_pass import PipelinePass
from sharding.runtime.stages.pipeline_state import PipelineState, resumed
from sharding.runtime.stages.residuals import saved_sharding
from sharding.runtime.stages.tick_computations import (
    NO_BACKWARD,
    PipelineBackwards,
    TickComputations,
    needed_backwards,
)
from sharding.schedules.lockstep import TickOrder, TickTable, tick_table
from sharding.trees import Tree

T = TypeVar("T")

_ByMicrobatch = dict[str, list[jax.Array]]
"""By channel, the activations of each microbatch, or their gradients."""

_Operands = tuple[Tree, _ByMicrobatch, Microbatches]
"""`(parameters, inputs, batch)`."""


class PipelineStepResult(NamedTuple):
    """The results of a step of a pipeline, or of its forwards alone: arrays, or their specs.

    Attributes:
        losses: `[replicas]` by name, summed over the microbatches.
        outputs: Activations by channel, one array for each microbatch.
        parameter_gradients: Unreduced, float32, summed over the microbatches: `{key: {...}}`, replicas first.
        input_gradients: By channel, for the channels whose gradient is needed, of each microbatch; none of forwards.
        saved_state: Arrays that the program of backwards takes from the forwards; empty where there is none.
    """

    losses: Any
    outputs: dict[str, Any]
    parameter_gradients: Tree
    input_gradients: dict[str, Any]
    saved_state: list[Any]


class CompiledPipeline(MeshPrograms[PipelineDefinition]):
    """The programs of a unit for a training step and for an evaluation, on its mesh.

    All take `(parameters, inputs, batch)` first, with the inputs of every channel as a list by microbatch:

    - `step(...) -> PipelineStepResult`
    - `backward(..., saved_state, output_gradients, parameter_gradients) -> BackwardResult`, where `step` has run
      forwards alone; None elsewhere. Gradients of channels are lists as well. `parameter_gradients` are the sums of the
      forwards, which are donated; the gradients of the backwards are added.
    - `evaluate(...) -> [StageOutput]`, one for each microbatch.

    Args:
        definition: What the unit computes.
        mesh: The mesh of all its pipeline ranks.
        axes: By module of the unit, what the axes of the mesh are for.
        input_shapes: Shape and dtype of each input channel of a microbatch.
        batch_shapes: Shapes of the arrays of a global batch that the unit reads.
        differentiated_inputs: Input channels whose gradient is needed.
        has_backward: Whether there is a backward at all.

    Attributes:
        definition: What the unit computes.
        backwards: The gradients that a step computes.
        microbatches: Microbatches of a step.
        operand_shapes, operand_specs: Shapes and specs of the arguments of all programs.
        saved_state_shardings: Shardings of what `step` leaves for `backward`.
    """

    def __init__(
        self,
        definition: PipelineDefinition,
        *,
        mesh: Mesh,
        axes: Mapping[str, Axes],
        input_shapes: Mapping[str, jax.ShapeDtypeStruct],
        batch_shapes: Microbatches,
        differentiated_inputs: frozenset[str],
        has_backward: bool,
    ) -> None:
        super().__init__(definition, mesh, axes, batch_shapes, differentiated_inputs)
        self.backwards = needed_backwards(definition, differentiated_inputs) if has_backward else NO_BACKWARD
        self.microbatches = jax.tree.leaves(batch_shapes.arrays)[0].shape[0]
        ((_, self._module_axes),) = {module_of(key): axes[module_of(key)] for key in definition.shapes}.items()
        self._row_spec, self._replica_spec = P(self._module_axes.data), P(self._module_axes.replicas)
        self.operand_specs = (
            definition.partition_specs,
            self.of_microbatches(definition.input_channels, self._channel_specs),
            self._batch_specs,
        )
        inputs = self.of_microbatches(definition.input_channels, input_shapes)
        self.operand_shapes = (definition.shapes, inputs, batch_shapes)
        self.evaluate = self._compile_evaluation()
        output = jax.eval_shape(self.evaluate, *self.operand_shapes)[0]
        self.output_shapes = output.outputs
        self.channel_shapes = {**input_shapes, **self.output_shapes}
        self.loss_names = tuple(sorted(output.losses))
        self.loss_specs = dict.fromkeys(self.loss_names, self._replica_spec)
        self._table = self._training_table()
        self.saved_state_shardings = self._trace_held() if self._table.order == "gpipe" else []
        self.step, self.backward = self._compile_training(self.gradient_specs if has_backward else {})

    # ------------------------------------------------------------------ building

    def of_microbatches(self, channels: Iterable[str], entries: Mapping[str, Any]) -> dict[str, list[Any]]:
        """Repeats the entries of some channels for all microbatches."""
        return {name: [entries[name]] * self.microbatches for name in channels}

    def _training_table(self) -> TickTable:
        definition = self.definition
        order: TickOrder = "forward_only"
        if self.backwards.layers:
            order = "gpipe" if definition.output_channels else "1f1b"
        return self._tick_table(order)

    def _tick_table(self, order: TickOrder) -> TickTable:
        return tick_table(self.definition.ranks, self.definition.chunks, self.microbatches, order)

    def _compile(
        self, kind: str, function: Callable, in_specs: Any, out_specs: Any, donate: tuple[int, ...] = ()
    ) -> Callable:
        mapped = jax.shard_map(function, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs)
        return named_jit(mapped, self.definition.stage_id, kind, donate_argnums=donate)

    def _compile_training(self, gradient_specs: Tree) -> tuple[Callable, Callable[..., BackwardResult] | None]:
        """Returns the program of a step and None; or the program of its forwards and the program of its backwards."""
        input_gradients = self.of_microbatches(sorted(self.differentiated_inputs), self._channel_specs)
        outputs = self.of_microbatches(self.definition.output_channels, self._channel_specs)
        if self._table.order != "gpipe":
            results = PipelineStepResult(self._replica_spec, outputs, gradient_specs, input_gradients, [])
            return self._compile("step", self._step, self.operand_specs, results), None
        saved_state = [sharding.spec for sharding in self.saved_state_shardings]
        results = PipelineStepResult(self._replica_spec, outputs, gradient_specs, {}, saved_state)
        forwards = self._compile("forward", self._step, self.operand_specs, results)
        operands = (*self.operand_specs, saved_state, outputs, gradient_specs)
        results = BackwardResult(input_gradients, gradient_specs)
        return forwards, self._compile("backward", self._backwards, operands, results, donate=(5,))

    def _compile_evaluation(self) -> Callable[..., list[StageOutput]]:
        outputs = {name: self._channel_specs[name] for name in self.definition.output_channels}
        microbatch_specs = StageOutput(outputs, self._replica_spec, self._row_spec)
        return self._compile("evaluate", self._evaluate, self.operand_specs, [microbatch_specs] * self.microbatches)

    def _trace_held(self) -> list[NamedSharding]:
        """The shardings of what forwards leave for backwards, which are known when these are traced."""
        shardings: list[NamedSharding] = []

        def body(*operands: Any) -> tuple[()]:
            saved_state = self._forward_pass(operands).initial_state().saved_state
            shardings.extend(saved_sharding(leaf, self.mesh) for leaf in jax.tree.leaves(saved_state))
            return ()

        mapped = jax.shard_map(body, mesh=self.mesh, in_specs=self.operand_specs, out_specs=())
        jax.eval_shape(mapped, *self.operand_shapes)
        return shardings

    # ------------------------------------------------------------------ bodies, as one device runs them

    def _computations(
        self, operands: _Operands, backwards: PipelineBackwards, output_gradients: _ByMicrobatch | None = None
    ) -> TickComputations:
        parameters, inputs, batch = operands
        stacked_inputs, stacked_gradients = (
            {name: jnp.stack(microbatch_arrays) for name, microbatch_arrays in channels.items()}
            for channels in (inputs, output_gradients or {})
        )
        return TickComputations(
            self.definition,
            axes=dict(self.axes),
            parameters=parameters,
            inputs=stacked_inputs,
            batch=batch,
            backwards=backwards,
            output_gradients=stacked_gradients,
        )

    def _forward_pass(self, operands: _Operands) -> PipelinePass:
        """The ticks of a step, or only the ticks with forwards where another program runs the backwards."""
        segments = self._table.segments()
        if self._table.order == "gpipe":
            segments = [segment for segment in segments if segment.has_forwards]
        return PipelinePass(self._computations(operands, self.backwards), self._table, segments)

    def _step(self, *operands: Any) -> PipelineStepResult:
        ticks = self._forward_pass(operands)
        state = ticks.run(ticks.initial_state())
        is_over = self._table.order != "gpipe"
        return PipelineStepResult(
            {name: jnp.sum(loss)[None] for name, loss in self._all_losses(state).items()},
            self._by_microbatch(state.outputs),
            _stacked(state.parameter_gradients),
            self._by_microbatch(state.input_gradients) if is_over else {},
            [] if is_over else _stacked(jax.tree.leaves(state.saved_state)),
        )

    def _backwards(
        self,
        parameters: Tree,
        inputs: _ByMicrobatch,
        batch: Microbatches,
        saved_state: list[jax.Array],
        output_gradients: _ByMicrobatch,
        parameter_gradients: Tree,
    ) -> BackwardResult:
        computations = self._computations((parameters, inputs, batch), self.backwards, output_gradients)
        segments = [segment for segment in self._table.segments() if not segment.has_forwards]
        ticks = PipelinePass(computations, self._table, segments)
        state = ticks.initial_state()
        saved_arrays = jax.tree.unflatten(jax.tree.structure(state.saved_state), [leaf[0] for leaf in saved_state])
        forward_gradients = jax.tree.map(lambda leaf: leaf[0], parameter_gradients)
        state = ticks.run(resumed(state, saved_arrays, forward_gradients))
        return BackwardResult(self._by_microbatch(state.input_gradients), _stacked(state.parameter_gradients))

    def _by_microbatch(self, arrays: Arrays) -> _ByMicrobatch:
        return {name: [array[number] for number in range(self.microbatches)] for name, array in arrays.items()}

    def _all_losses(self, state: PipelineState) -> Arrays:
        """`[m]` by name, of the pieces around the stack and of the layers of all ranks."""
        layer_losses = {name: lax.psum(array, self._module_axes.pipeline) for name, array in state.layer_losses.items()}
        names = sorted({*state.losses, *layer_losses})
        return {name: state.losses.get(name, 0.0) + layer_losses.get(name, 0.0) for name in names}

    def _evaluate(self, *operands: Any) -> list[StageOutput]:
        table = self._tick_table("forward_only")
        computations = self._computations(operands, NO_BACKWARD)
        ticks = PipelinePass(computations, table, table.segments(), keeps_metrics=True)
        state = ticks.run(ticks.initial_state())
        losses = {name: loss[:, None] for name, loss in self._all_losses(state).items()}  # [m] -> [m, 1]
        stacked_output = StageOutput(state.outputs, losses, state.auxiliary_metrics)
        return [jax.tree.map(lambda array, at=number: array[at], stacked_output) for number in range(self.microbatches)]


def _stacked(tree: T) -> T:
    """Returns a device's arrays with a leading dimension, along which the arrays of all devices are stacked."""
    return jax.tree.map(lambda leaf: leaf[None], tree)
