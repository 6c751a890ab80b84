"""Computations of a rank in a tick of a pipeline that is one program: its chunk, and the pieces around the stack."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import jaxpr_as_fun

from pallas_kernels.varying import make_varying
from sharding.axes import Axes
from sharding.runtime.stages.definition import Arrays, Microbatches, PipelineDefinition, StageOutput, module_of
from sharding.runtime.stages.residuals import VjpStructure, split_vjp
from sharding.trees import Tree

T = TypeVar("T")


class PipelineBackwards(NamedTuple):
    """Which gradients a step of a pipeline computes.

    Attributes:
        inputs: Channels whose gradient is needed.
        embed: Whether the pieces before the stack have a backward.
        layers: Whether the layers of the stack, and the pieces behind it, have one.
    """

    inputs: frozenset[str] = frozenset()
    embed: bool = False
    layers: bool = False


NO_BACKWARD = PipelineBackwards()


def needed_backwards(definition: PipelineDefinition, inputs: frozenset[str]) -> PipelineBackwards:
    """The backwards of a training step, given the channels whose gradient is needed."""
    trained = definition.trained_keys
    embed = bool(inputs or trained & definition.embed_keys)
    return PipelineBackwards(inputs, embed, layers=bool(inputs or trained))


class LayersForward(NamedTuple):
    """The forward of a chunk.

    Attributes:
        output: Activations `[r, q, d]`.
        losses: Losses of the layers by name.
        residuals: Arrays that the backward needs.
        vjp_structure: The structure from which it restores the vjp function.
    """

    output: jax.Array
    losses: Arrays
    residuals: list[jax.Array]
    vjp_structure: VjpStructure


class HeadResult(NamedTuple):
    """Results of the pieces behind the stack for a microbatch, the same on all pipeline ranks.

    Attributes:
        output: Outputs by channel, losses and metrics.
        parameter_gradients: Gradients of the losses by key of the parameters that train; empty without a backward.
        gradient: Gradient of the losses with respect to the activations that they take; None without a backward.
    """

    output: StageOutput
    parameter_gradients: Tree
    gradient: jax.Array | None


class TickComputations:
    """The computations of a tick, inside `jax.shard_map`.

    Args:
        definition: What the unit computes.
        axes: Mesh axes by module.
        parameters: This device's compute weights.
        inputs: Activations of all microbatches by channel, `[m, r, ...]`.
        batch: This device's shard of the batch.
        backwards: The gradients that are computed.
        output_gradients: Gradients of the outputs of all microbatches by channel, where these have come.

    Attributes:
        pipeline, data, replicas: The axes of pipeline ranks, of rows, and of rows and positions.
        rank: This device's pipeline rank.
        parameters: The compute weights, marked as varying over replicas.
    """

    def __init__(
        self,
        definition: PipelineDefinition,
        *,
        axes: dict[str, Axes],
        parameters: Tree,
        inputs: Arrays,
        batch: Microbatches,
        backwards: PipelineBackwards,
        output_gradients: Arrays,
    ) -> None:
        self.definition, self.backwards, self.inputs = definition, backwards, inputs
        self._axes, self._batch, self._output_gradients = axes, batch, output_gradients
        (module_axes,) = {module_of(key): axes[module_of(key)] for key in parameters}.values()
        self.pipeline, self.data, self.replicas = module_axes.pipeline, module_axes.data, module_axes.replicas
        self._sequence = module_axes.sequence
        self.rank = lax.axis_index(self.pipeline)
        self.parameters = {
            key: make_varying(tree, definition.axes_of_layers(key, axes).replicas) for key, tree in parameters.items()
        }

    @property
    def activation_axes(self) -> tuple[str, ...]:
        """The axes over which the activations between layers differ."""
        return (*self.pipeline, *self.replicas, *self._sequence)

    def is_rank(self, rank: int | jax.Array) -> jax.Array:
        """Whether this device is of a pipeline rank."""
        return self.rank == rank

    def _microbatch(self, index: jax.Array) -> dict[str, Arrays]:
        """[m, r, ...] -> [r, ...], and `seed_and_step` for the module if it reads that."""
        arrays = jax.tree.map(lambda array: lax.dynamic_index_in_dim(array, index, keepdims=False), self._batch.arrays)
        for module, names in self.definition.batch_arrays.items():
            if "seed_and_step" in names:
                arrays[module] = {**arrays[module], "seed_and_step": self._batch.seed_and_step}
        return arrays

    def _split(self, keys: frozenset[str]) -> tuple[Tree, Tree]:
        """The parameters under some keys that train, and the ones that do not."""
        trained = {key: self.parameters[key] for key in sorted(keys & self.definition.trained_keys)}
        return trained, {key: self.parameters[key] for key in sorted(keys - self.definition.trained_keys)}

    # ------------------------------------------------------------------ before the stack

    def _embed_function(self, index: jax.Array) -> tuple[Any, tuple[Tree, Arrays]]:
        """The pieces before the stack as a function of trained parameters and differentiated inputs, and these."""
        trained, frozen = self._split(self.definition.embed_keys)
        microbatch_inputs = {
            name: lax.dynamic_index_in_dim(array, index, keepdims=False) for name, array in self.inputs.items()
        }
        differentiated = {name: x for name, x in microbatch_inputs.items() if name in self.backwards.inputs}
        microbatch = self._microbatch(index)

        def function(trained: Tree, inputs: Arrays) -> jax.Array:
            x = self.definition.embed({**trained, **frozen}, {**microbatch_inputs, **inputs}, microbatch, self._axes)
            return make_varying(x, (*self.replicas, *self._sequence))

        return function, (trained, differentiated)

    def embed(self, index: jax.Array) -> jax.Array:
        """Activations that enter the stack for a microbatch, the same on all pipeline ranks."""
        function, arguments = self._embed_function(index)
        return function(*arguments)

    def embed_backward(self, index: jax.Array, gradient: jax.Array) -> tuple[Tree, Arrays]:
        """Gradients of the parameters before the stack, and of inputs, given the first rank's gradient of a chunk."""
        function, arguments = self._embed_function(index)
        _, vjp = jax.vjp(function, *arguments)
        return vjp(self.from_rank(0, gradient))

    def from_rank(self, rank: int | jax.Array, x: jax.Array) -> jax.Array:
        """Broadcasts the activations of one pipeline rank to all of them."""
        return lax.psum(jnp.where(self.is_rank(rank), x, jnp.zeros((), x.dtype)), self.pipeline)

    # ------------------------------------------------------------------ behind the stack

    def _head_function(self, index: jax.Array) -> tuple[Callable[[Tree, jax.Array], StageOutput], Tree]:
        """The pieces behind the stack as a function of trained parameters and activations, and these parameters."""
        trained, frozen = self._split(self.definition.head_keys)
        microbatch = self._microbatch(index)

        def function(trained: Tree, x: jax.Array) -> StageOutput:
            output = self.definition.head({**trained, **frozen}, x, microbatch, self._axes)
            axes = (self.data, self.replicas, self.data)
            return StageOutput(
                *(make_varying(arrays, array_axes) for arrays, array_axes in zip(output, axes, strict=True))
            )

        return function, trained

    def head(self, index: jax.Array, x: jax.Array) -> HeadResult:
        """The pieces behind the stack, with the backward of their losses if there is one.

        Args:
            index: Number of the microbatch.
            x: The last rank's output of its last chunk, on all ranks.
        """
        function, trained = self._head_function(index)
        if not self.backwards.layers:
            return HeadResult(function(trained, x), {}, None)

        def losses_and_output(trained: Tree, x: jax.Array) -> tuple[Arrays, StageOutput]:
            output = function(trained, x)
            return output.losses, output

        losses, vjp, output = jax.vjp(losses_and_output, trained, x, has_aux=True)
        parameter_gradients, gradient = vjp(self._ones_like(losses, self.replicas))
        return HeadResult(output, parameter_gradients, gradient)

    def head_backward(self, index: jax.Array, x: jax.Array) -> tuple[Tree, jax.Array]:
        """Gradients of the parameters behind the stack and of the inputs of `head`, given its outputs' gradients."""
        function, trained = self._head_function(index)
        _, vjp = jax.vjp(lambda trained, x: function(trained, x).outputs, trained, x)
        return vjp(
            {
                name: lax.dynamic_index_in_dim(array, index, keepdims=False)
                for name, array in self._output_gradients.items()
            }
        )

    @staticmethod
    def _ones_like(losses: dict[str, Any], axes: tuple[str, ...]) -> Arrays:
        return {name: make_varying(jnp.ones((), loss.dtype), axes) for name, loss in losses.items()}

    # ------------------------------------------------------------------ the layers of a chunk

    def of_chunk(self, chunk: jax.Array, tree: T) -> T:
        """A chunk's slice of this rank's stacked arrays `[v l, ...]`."""
        if self.definition.chunks == 1:
            return tree
        count = self.definition.chunk_layers
        return jax.tree.map(lambda leaf: lax.dynamic_slice_in_dim(leaf, chunk * count, count), tree)

    def layers_operands(self, index: jax.Array, chunk: jax.Array, x: jax.Array) -> tuple[Any, ...]:
        """Operands of a chunk's forward and backward: weights that train, the others, x, batch, number."""
        weights = (self.of_chunk(chunk, tree) for tree in self._split(self.definition.stack_keys))
        first_layer = (chunk * self.definition.ranks + self.rank) * self.definition.chunk_layers
        return (*weights, x, self._microbatch(index), first_layer)

    def trace_layers(self, x: jax.Array) -> jax.stages.Traced:
        """The forward of a chunk, traced once for all scans: `(*layers_operands) -> LayersForward`."""
        any_microbatch = make_varying(jnp.zeros((), jnp.int32), self.pipeline)
        return jax.jit(self._layers_forward).trace(*self.layers_operands(any_microbatch, any_microbatch, x))

    def _layers_forward(
        self, trained: Tree, frozen: Tree, x: jax.Array, microbatch: dict[str, Arrays], first_layer: jax.Array
    ) -> LayersForward:
        def function(trained: Tree, x: jax.Array) -> tuple[jax.Array, Arrays]:
            output, losses = self.definition.run_layers({**trained, **frozen}, x, microbatch, self._axes, first_layer)
            return make_varying(output, self.activation_axes), make_varying(losses, (*self.pipeline, *self.replicas))

        if not self.backwards.layers:
            return LayersForward(*function(trained, x), *split_vjp((), ()))
        (output, losses), vjp = jax.vjp(function, trained, x)
        available = jax.tree.leaves((trained, frozen, x, microbatch, first_layer))
        return LayersForward(output, losses, *split_vjp(vjp, available))

    def layers_backward(
        self, program: jax.stages.Traced, operands: tuple[Any, ...], residuals: list[jax.Array], gradient: jax.Array
    ) -> tuple[Tree, jax.Array]:
        """Gradients of a chunk's parameters that train, and of its input, given the gradient of its output."""
        forward = abstract_results(program)
        vjp = forward.vjp_structure.restore(residuals, jax.tree.leaves(operands))
        return vjp((gradient, self._ones_like(forward.losses, (*self.pipeline, *self.replicas))))


def abstract_results(program: jax.stages.Traced) -> LayersForward:
    """Shapes of what the traced forward of a chunk returns, and its vjp's structure."""
    return jax.tree.unflatten(program.out_tree, program.jaxpr.out_avals)


def run_traced(program: jax.stages.Traced, operands: tuple[Any, ...]) -> LayersForward:
    """Runs the forward of a chunk as it was traced."""
    results = jaxpr_as_fun(program.jaxpr)(*jax.tree.leaves(operands))
    return jax.tree.unflatten(program.out_tree, results)
