"""A unit's whole pipeline as one jitted `jax.shard_map` program a step, over pipeline ranks and the axes of stages.

The program goes through the ticks of a table (`sharding.schedules.lockstep`) by `lax.scan`. In a tick, all ranks

1. run the pieces before the stack for one microbatch, together;
2. run a forward of their chunk, and send its output to the next rank by `lax.ppermute`;
3. run the pieces behind the stack for one microbatch, together, forward and backward;
4. run a backward of their chunk, and send the gradient of its input to the rank before;
5. run the backward of the pieces before the stack for one microbatch, together;
6. compute the gradients of a chunk's weights, where the schedule leaves these for later.

A rank without a forward or backward in a tick runs one nevertheless, on what its slots happen to hold, and nothing of
the result is kept: collectives need all ranks. Ticks in which no rank has a forward, or none a backward, are other
scans, without them. What is in flight is in slots, as many as the rank that holds most needs. Gradients are summed on
each replica, and reduced once a step by another program (`master_weights.py`).
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from sharding.axes import Axes
from sharding.runtime.stages.definition import Arrays, Microbatches, PipelineDefinition, module_of
from sharding.runtime.stages.mesh_programs import MeshPrograms
from sharding.runtime.stages.named_programs import named_jit
from sharding.runtime.stages.pipeline_pass import PipelinePass
from sharding.runtime.stages.pipeline_sections import (
    NO_BACKWARD,
    PipelineBackwards,
    PipelineSections,
    needed_backwards,
)
from sharding.schedules.lockstep import tick_table
from sharding.trees import Tree


class PipelineStepResult(NamedTuple):
    """What a step of a pipeline returns: arrays, or their specs.

    Attributes:
        losses: `[replicas]` by name, summed over the microbatches.
        parameter_gradients: Unreduced, float32, summed over the microbatches: `{key: {...}}`, replicas first.
        input_gradients: By channel, for the channels whose gradient is needed, of each microbatch.
    """

    losses: Any
    parameter_gradients: Tree
    input_gradients: dict[str, Any]


class PipelineEvaluation(NamedTuple):
    """What an evaluation of a pipeline returns for each microbatch: arrays, or their specs.

    Attributes:
        losses: `[replicas]` by name.
        auxiliary_metrics: Arrays by name, rows first.
    """

    losses: Any
    auxiliary_metrics: Any


class CompiledPipeline(MeshPrograms[PipelineDefinition]):
    """The program of a training step, and that of an evaluation, of a unit on its mesh.

    Both take `(parameters, inputs, batch)`, with the inputs of every channel as a list of those of each microbatch:

    - `step(...) -> PipelineStepResult`
    - `evaluate(...) -> [PipelineEvaluation]`

    Args:
        definition: What the unit computes.
        mesh: The mesh of all its pipeline ranks.
        axes: By module of the unit, what the axes of the mesh are for.
        input_shapes: Shape and dtype of each input channel of a microbatch.
        batch_shapes: Shapes of the unit's part of a global batch.
        differentiated_inputs: Input channels whose gradient is needed.
        has_backward: Whether there is a backward at all.
        splits_backward: Whether gradients of layers' weights are computed apart from what is sent back.

    Attributes:
        definition: What the unit computes.
        backwards: The gradients that a step computes.
        microbatches: Microbatches of a step.
        operand_shapes, operand_specs: Shapes and specs of what both programs take.
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
        splits_backward: bool = False,
    ) -> None:
        self.definition, self.mesh, self.axes = definition, mesh, axes
        self.batch_shapes, self.differentiated_inputs = batch_shapes, differentiated_inputs
        self.backwards = needed_backwards(definition, differentiated_inputs) if has_backward else NO_BACKWARD
        self._splits_backward = splits_backward and bool(definition.trained_keys & definition.stack_keys)
        self.microbatches = jax.tree.leaves(batch_shapes.arrays)[0].shape[0]
        ((_, self._module_axes),) = {module_of(key): axes[module_of(key)] for key in definition.shapes}.items()
        channel_specs = definition.channel_specs(axes)
        self.channel_shapes = dict(input_shapes)
        self.output_shapes: dict[str, jax.ShapeDtypeStruct] = {}
        self.channel_shardings = {name: NamedSharding(mesh, spec) for name, spec in channel_specs.items()}
        self._row_spec, self._replica_spec = P(self._module_axes.data), P(self._module_axes.replicas)
        batch_specs = Microbatches(
            {
                name: dict.fromkeys(of_module, P(None, axes[name].data))
                for name, of_module in batch_shapes.arrays.items()
            },
            P(),
        )
        count = self.microbatches
        self.operand_specs = (
            definition.partition_specs,
            {name: [channel_specs[name]] * count for name in definition.input_channels},
            batch_specs,
        )
        inputs = {name: [input_shapes[name]] * count for name in definition.input_channels}
        self.operand_shapes = (definition.shapes, inputs, batch_shapes)
        input_gradients = {name: [channel_specs[name]] * count for name in sorted(differentiated_inputs)}
        gradient_specs = self.gradient_specs() if has_backward else {}
        self.step = self._compile(
            "step", self._step, PipelineStepResult(self._replica_spec, gradient_specs, input_gradients)
        )
        self.evaluate = self._compile(
            "evaluate", self._evaluate, [PipelineEvaluation(self._replica_spec, self._row_spec)] * count
        )
        losses = jax.eval_shape(self.evaluate, *self.operand_shapes)[0].losses
        self.loss_names = tuple(sorted(losses))
        self.loss_specs = dict.fromkeys(self.loss_names, self._replica_spec)

    def _compile(self, kind: str, function: Callable, out_specs: Any) -> Callable:
        mapped = jax.shard_map(function, mesh=self.mesh, in_specs=self.operand_specs, out_specs=out_specs)
        return named_jit(mapped, self.definition.stage_id, kind)

    # ------------------------------------------------------------------ bodies, as one device runs them

    def _sections(
        self, parameters: Tree, inputs: dict[str, list[jax.Array]], batch: Microbatches, backwards: PipelineBackwards
    ) -> PipelineSections:
        stacked = {name: jnp.stack(of_channel) for name, of_channel in inputs.items()}
        return PipelineSections(self.definition, dict(self.axes), parameters, stacked, batch, backwards)

    def _all_losses(self, losses: Arrays, layer_losses: Arrays) -> Arrays:
        """`[m]` by name, of the pieces around the stack and of the layers of all ranks."""
        of_layers = {name: lax.psum(array, self._module_axes.pipeline) for name, array in layer_losses.items()}
        names = sorted({*losses, *of_layers})
        return {name: losses.get(name, 0.0) + of_layers.get(name, 0.0) for name in names}

    def _step(self, parameters: Tree, inputs: dict[str, list[jax.Array]], batch: Microbatches) -> PipelineStepResult:
        definition, count = self.definition, self.microbatches
        sections = self._sections(parameters, inputs, batch, self.backwards)
        table = tick_table(
            definition.ranks,
            definition.chunks,
            count,
            has_backward=self.backwards.layers,
            splits_backward=self._splits_backward,
        )
        state = PipelinePass(sections, table, keeps_metrics=False).run()
        losses = self._all_losses(state.losses, state.layer_losses)
        return PipelineStepResult(
            {name: jnp.sum(loss)[None] for name, loss in losses.items()},
            jax.tree.map(lambda gradient: gradient[None], state.parameter_gradients),
            {name: [array[number] for number in range(count)] for name, array in state.input_gradients.items()},
        )

    def _evaluate(
        self, parameters: Tree, inputs: dict[str, list[jax.Array]], batch: Microbatches
    ) -> list[PipelineEvaluation]:
        definition, count = self.definition, self.microbatches
        sections = self._sections(parameters, inputs, batch, NO_BACKWARD)
        table = tick_table(definition.ranks, definition.chunks, count, has_backward=False)
        state = PipelinePass(sections, table, keeps_metrics=True).run()
        losses = self._all_losses(state.losses, state.layer_losses)

        def of_microbatch(number: int) -> PipelineEvaluation:
            metrics = {name: array[number] for name, array in state.auxiliary_metrics.items()}
            return PipelineEvaluation({name: loss[number][None] for name, loss in losses.items()}, metrics)

        return [of_microbatch(number) for number in range(count)]
