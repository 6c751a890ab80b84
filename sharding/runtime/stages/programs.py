"""The compiled programs of one stage: forward, backward and evaluation, each a jitted `jax.shard_map` on its submesh.

Residuals stay on the stage's devices between forward and backward and hold activations only (`residuals.py`).
Parameters are cast once a step, beforehand; their gradients come out unreduced over the data axes of their module, are
accumulated for each of its replicas, and are reduced once a step (`master_weights.py`). The engine makes these programs
of every stage that is dispatched; `MicrobatchOps` calls them.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import jaxpr_as_fun
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from pallas_kernels.varying import make_varying
from sharding.axes import Axes
from sharding.runtime.stages.definition import (
    Arrays,
    BackwardResult,
    ForwardResult,
    Microbatches,
    StageDefinition,
    StageOutput,
    module_of,
)
from sharding.runtime.stages.mesh_programs import MeshPrograms, add_gradients
from sharding.runtime.stages.named_programs import named_jit
from sharding.runtime.stages.residuals import VjpStructure, saved_sharding, split_vjp
from sharding.runtime.stages.split_backward import MicrobatchArrays, SplitBackward
from sharding.trees import Tree


class _VjpResult(NamedTuple):
    """A forward under `jax.vjp`: its outputs, its residuals, and the structure of the vjp function."""

    outputs: Arrays
    losses: Arrays
    residuals: list[jax.Array]
    vjp_structure: VjpStructure


class _TracedForward(NamedTuple):
    """The model of a stage under the axes of its submesh, traced once.

    Attributes:
        program: `(parameters, inputs, batch, index) -> _VjpResult`.
        residual_shardings: Shardings of the residuals.
        vjp_structure: The structure from which the backward restores the vjp function.
    """

    program: jax.stages.Traced
    residual_shardings: list[NamedSharding]
    vjp_structure: VjpStructure


class StagePrograms(MeshPrograms[StageDefinition]):
    """Compiled forward, backward and evaluation of one stage on one submesh, for rows of one capacity.

    All three take `(parameters, inputs, batch, index)`, where `index` is the number of the microbatch:

    - `evaluate(...) -> StageOutput`
    - `forward(..., losses) -> ForwardResult`; `losses` are donated.
    - `backward(..., residuals, output_gradients, parameter_gradients) -> BackwardResult`; the parameter gradients are
      donated. None where the stage has no backward, and where that is split (`SplitBackward`).

    Args:
        definition: What the stage computes.
        mesh: Its submesh.
        axes: By module of the stage, what the axes of the submesh are for.
        input_shapes: Shape and dtype of each input channel of a microbatch.
        batch_shapes: Shapes of the arrays of a global batch that the stage reads, whose rows have the largest capacity.
        row_lengths: By module and name of a batch array, how much of its rows is read; all of it if left out.
        name_suffix: Tells the names of the programs from the names of the programs for rows of other capacities.
        differentiated_inputs: Input channels whose gradient is needed.
        has_backward: Whether there is a backward at all; if not, `forward` saves no residuals.
        splits_backward: Whether gradients of weights are computed apart from what is sent back.

    Attributes:
        definition: What the stage computes.
        operand_shapes, operand_specs: Shapes and specs of `(parameters, inputs, batch, index)`.
        output_specs: Specs of each output channel.
        residual_specs, residual_shardings: Specs and shardings of what `forward` saves for `backward`; offloaded arrays
        are in host memory.
        split_backward: The programs of a split backward; None if it is not.
    """

    def __init__(
        self,
        definition: StageDefinition,
        *,
        mesh: Mesh,
        axes: Mapping[str, Axes],
        input_shapes: Mapping[str, jax.ShapeDtypeStruct],
        batch_shapes: Microbatches,
        differentiated_inputs: frozenset[str],
        has_backward: bool,
        splits_backward: bool = False,
        row_lengths: Mapping[str, Mapping[str, int]] | None = None,
        name_suffix: str = "",
    ) -> None:
        super().__init__(definition, mesh, axes, batch_shapes, differentiated_inputs)
        self._row_lengths, self._name_suffix = row_lengths or {}, name_suffix
        input_specs = {name: self._channel_specs[name] for name in definition.input_channels}
        output_specs = self.output_specs = {name: self._channel_specs[name] for name in definition.output_channels}
        self.operand_specs = (definition.partition_specs, input_specs, self._batch_specs, P())
        self.operand_shapes = (
            definition.shapes,
            dict(input_shapes),
            batch_shapes,
            jax.ShapeDtypeStruct((), jnp.int32),
        )
        self._row_specs = {module: P(axes[module].data) for module in axes}
        self._replica_specs = {module: P(axes[module].replicas) for module in axes}
        self.evaluate = self._compile_evaluation()
        self.output_shapes, self.loss_names, self._traced = self._trace_forward(has_backward)
        self.channel_shapes = {**input_shapes, **self.output_shapes}
        loss_specs = self.loss_specs = {name: P(axes[module_of(name)].replicas) for name in self.loss_names}
        self.residual_shardings = self._traced.residual_shardings
        self.residual_specs = [sharding.spec for sharding in self.residual_shardings]
        result_specs = ForwardResult(output_specs, self.residual_specs, loss_specs)
        forward_specs = (*self.operand_specs, loss_specs)
        self.forward = self._compile("forward", self._forward, forward_specs, result_specs, donate=(4,))
        self.backward: Callable[..., BackwardResult] | None = None
        self.split_backward: SplitBackward | None = None
        if not has_backward:
            return
        gradient_specs = self.gradient_specs
        input_gradient_specs = {name: self._channel_specs[name] for name in differentiated_inputs}
        if splits_backward:
            self.split_backward = self._split_backward(input_gradient_specs, gradient_specs)
            return
        self.backward = self._compile(
            "backward",
            self._backward,
            (*self.operand_specs, self.residual_specs, output_specs, gradient_specs),
            BackwardResult(input_gradient_specs, gradient_specs),
            donate=(6,),
        )

    @property
    def has_backward(self) -> bool:
        """Whether there is a backward, whole or split."""
        return self.backward is not None or self.split_backward is not None

    # ------------------------------------------------------------------ building

    def _compile(
        self, kind: str, function: Callable, in_specs: Any, out_specs: Any, donate: tuple[int, ...] = ()
    ) -> Callable:
        mapped = jax.shard_map(function, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs)
        return named_jit(mapped, self.definition.stage_id, kind + self._name_suffix, donate_argnums=donate)

    def _split_backward(self, input_gradient_specs: dict[str, P], gradient_specs: Tree) -> SplitBackward:
        (parameters, inputs, batch, index), (*_, index_spec) = self.operand_shapes, self.operand_specs
        forward = jax.eval_shape(self.forward, *self.operand_shapes, jax.eval_shape(self.zero_losses))
        arrays = MicrobatchArrays(inputs, forward.residuals, forward.outputs)
        input_specs, batch_specs = self.operand_specs[1:3]
        return SplitBackward(
            self._gradients,
            stage_id=self.definition.stage_id,
            mesh=self.mesh,
            operand_shapes=(parameters, batch, index, arrays),
            operand_specs=(
                self.definition.partition_specs,
                batch_specs,
                index_spec,
                MicrobatchArrays(input_specs, self.residual_specs, self.output_specs),
            ),
            input_gradient_specs=input_gradient_specs,
            gradient_specs=gradient_specs,
            name_suffix=self._name_suffix,
        )

    def _compile_evaluation(self) -> Callable[..., StageOutput]:
        """Losses and metrics leave `shard_map` by module, for their names are not known before it is traced."""

        def body(*operands: Any) -> StageOutput:
            output = self._evaluate(*operands)
            return StageOutput(
                output.outputs, self._by_module(output.losses), self._by_module(output.auxiliary_metrics)
            )

        specs = StageOutput(self.output_specs, self._replica_specs, self._row_specs)
        mapped = jax.shard_map(body, mesh=self.mesh, in_specs=self.operand_specs, out_specs=specs)

        def evaluate(*operands: Any) -> StageOutput:
            output = mapped(*operands)
            return StageOutput(output.outputs, _joined(output.losses), _joined(output.auxiliary_metrics))

        return named_jit(evaluate, self.definition.stage_id, "evaluate" + self._name_suffix)

    def _by_module(self, arrays: Arrays) -> dict[str, Arrays]:
        """Groups by module losses, whose specs are `_replica_specs`, or metrics, whose specs are `_row_specs`."""
        groups: dict[str, Arrays] = {module: {} for module in self.axes}
        for name, array in arrays.items():
            groups[module_of(name)][name] = array
        return groups

    def _trace_forward(self, has_backward: bool) -> tuple[dict[str, Any], tuple[str, ...], _TracedForward]:
        """Traces the model once, for `forward`: shapes of its outputs, sorted names of its losses, and the trace."""
        function = self._apply_with_vjp if has_backward else self._apply_without_vjp
        traces: list[_TracedForward] = []

        def body(*operands: Any) -> tuple[Arrays, dict[str, Arrays]]:
            program = jax.jit(function).trace(*operands)
            result = _run_traced(program, *operands)
            residual_shardings = [saved_sharding(leaf, self.mesh) for leaf in result.residuals]
            traces.append(_TracedForward(program, residual_shardings, result.vjp_structure))
            return result.outputs, self._by_module({name: loss[None] for name, loss in result.losses.items()})

        specs = (self.output_specs, self._replica_specs)
        mapped = jax.shard_map(body, mesh=self.mesh, in_specs=self.operand_specs, out_specs=specs)
        outputs, losses = jax.eval_shape(mapped, *self.operand_shapes)
        return outputs, tuple(sorted(name for names in losses.values() for name in names)), traces[0]

    # ------------------------------------------------------------------ bodies, as one device runs them

    def _microbatch(self, batch: Microbatches, index: jax.Array) -> dict[str, Arrays]:
        """[m, r, s, ...] -> [r, s', ...] of the rows' first s', and `seed_and_step` for the modules that read it."""
        arrays = jax.tree.map(lambda array: lax.dynamic_index_in_dim(array, index, keepdims=False), batch.arrays)
        for module, lengths in self._row_lengths.items():
            arrays[module] |= {name: arrays[module][name][:, :length] for name, length in lengths.items()}
        for module, names in self.definition.batch_arrays.items():
            if "seed_and_step" in names:
                arrays[module] = {**arrays[module], "seed_and_step": batch.seed_and_step}
        return arrays

    def _apply(self, parameters: Tree, inputs: Arrays, microbatch: dict[str, Arrays]) -> StageOutput:
        output = StageOutput(*self.definition.apply(parameters, inputs, microbatch, self.axes))
        return output._replace(losses=self._varying_losses(output.losses))

    def _varying_losses(self, losses: Arrays) -> Arrays:
        """Marks losses as varying over the replicas of their module."""
        return {name: make_varying(loss, self.axes[module_of(name)].replicas) for name, loss in losses.items()}

    def _varying_parameters(self, parameters: Tree) -> Tree:
        """Marks parameters as varying over the replicas of their layers."""
        axes_of = self.definition.axes_of_layers
        return {key: make_varying(tree, axes_of(key, self.axes).replicas) for key, tree in parameters.items()}

    def _evaluate(self, parameters: Tree, inputs: Arrays, batch: Microbatches, index: jax.Array) -> StageOutput:
        output = self._apply(parameters, inputs, self._microbatch(batch, index))
        return output._replace(losses={name: loss[None] for name, loss in output.losses.items()})  # [] -> [1]

    def _apply_without_vjp(self, parameters: Tree, inputs: Arrays, batch: Microbatches, index: jax.Array) -> _VjpResult:
        output = self._apply(parameters, inputs, self._microbatch(batch, index))
        return _VjpResult(output.outputs, output.losses, *split_vjp((), ()))  # nothing is saved

    def _differentiated_and_constant(
        self, parameters: Tree, inputs: Arrays
    ) -> tuple[tuple[Tree, Arrays], tuple[Tree, Arrays]]:
        """Parameters and inputs that are differentiated, and the others; all weights vary over replicas.

        All weights are cast to varying (`lax.pcast`) over the replicas of their layers. Autodiff would otherwise sum
        the gradients of trained weights over the replicas (`psum`). Frozen weights would otherwise be cast implicitly
        where they are used, and the cast arrays be saved as residuals, not recognised as available to the backward
        (`split_vjp`).
        """
        parameters = self._varying_parameters(parameters)
        trained_keys = self.definition.trained_keys
        trained = {key: tree for key, tree in parameters.items() if key in trained_keys}
        frozen = {key: tree for key, tree in parameters.items() if key not in trained_keys}
        differentiated = {name: x for name, x in inputs.items() if name in self.differentiated_inputs}
        constant = {name: x for name, x in inputs.items() if name not in self.differentiated_inputs}
        return (trained, differentiated), (frozen, constant)

    def _apply_with_vjp(self, parameters: Tree, inputs: Arrays, batch: Microbatches, index: jax.Array) -> _VjpResult:
        microbatch = self._microbatch(batch, index)
        differentiated, (frozen, constant_inputs) = self._differentiated_and_constant(parameters, inputs)

        def outputs_and_losses(trained: Tree, differentiated_inputs: Arrays) -> tuple[Arrays, Arrays]:
            output = self._apply({**trained, **frozen}, {**differentiated_inputs, **constant_inputs}, microbatch)
            return output.outputs, output.losses

        (outputs, losses), vjp = jax.vjp(outputs_and_losses, *differentiated)
        available = jax.tree.leaves((differentiated, (frozen, constant_inputs), microbatch))
        residuals, vjp_structure = split_vjp(vjp, available)
        return _VjpResult(outputs, losses, residuals, vjp_structure)

    def _forward(
        self, parameters: Tree, inputs: Arrays, batch: Microbatches, index: jax.Array, losses: Arrays
    ) -> ForwardResult:
        result = _run_traced(self._traced.program, parameters, inputs, batch, index)
        residuals = [leaf[None] for leaf in result.residuals]  # a leading dimension to stack devices along
        return ForwardResult(result.outputs, residuals, _add_losses(losses, result.losses))

    def _backward(
        self,
        parameters: Tree,
        inputs: Arrays,
        batch: Microbatches,
        index: jax.Array,
        residuals: list[jax.Array],
        output_gradients: Arrays,
        parameter_gradients: Tree,
    ) -> BackwardResult:
        arrays = MicrobatchArrays(inputs, [leaf[0] for leaf in residuals], output_gradients)
        input_gradients, new_gradients = self._gradients(parameters, batch, index, arrays)
        return BackwardResult(input_gradients, add_gradients(parameter_gradients, new_gradients))

    def _gradients(
        self, parameters: Tree, batch: Microbatches, index: jax.Array, arrays: MicrobatchArrays
    ) -> tuple[Arrays, Tree]:
        """Gradients of a microbatch with respect to inputs and parameters."""
        differentiated, constant = self._differentiated_and_constant(parameters, arrays.inputs)
        available = jax.tree.leaves((differentiated, constant, self._microbatch(batch, index)))
        vjp = self._traced.vjp_structure.restore(arrays.residuals, available)
        loss_gradients = self._varying_losses({name: jnp.ones(()) for name in self.loss_names})
        parameter_gradients, input_gradients = vjp((arrays.output_gradients, loss_gradients))
        return input_gradients, parameter_gradients


def _add_losses(totals: Arrays, losses: Arrays) -> Arrays:
    """Adds a microbatch's losses to a replica's losses `[1]` of the microbatches so far."""
    return {name: total + losses[name][None] for name, total in totals.items()}


def _run_traced(program: jax.stages.Traced, *operands: Any) -> _VjpResult:
    """Runs the model as it was traced. A call of `program` would put a scope around its operations (jax 0.12)."""
    results = jaxpr_as_fun(program.jaxpr)(*jax.tree.leaves(operands))
    return jax.tree.unflatten(program.out_tree, results)


def _joined(groups: Mapping[str, Arrays]) -> Arrays:
    """Joins the losses or metrics of all modules."""
    return {name: array for group in groups.values() for name, array in group.items()}
