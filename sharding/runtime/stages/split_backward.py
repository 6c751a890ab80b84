"""The backward of a stage as two programs: dgrad, whose results the stage before waits for, and wgrad.

Which operations are in which follows from the traced backward (`sharding/runtime/split_programs/`). What dgrad saves
for wgrad stays on the stage's devices, and of the activations that the forward saved only the arrays that wgrad reads.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from sharding.plans.resolved.stage_graph import StageId
from sharding.runtime.split_programs.parts import chosen, placed
from sharding.runtime.split_programs.program import SplitProgram, split_traced
from sharding.runtime.stages.definition import Arrays, Microbatches
from sharding.runtime.stages.mesh_programs import add_gradients
from sharding.runtime.stages.named_programs import named_jit
from sharding.runtime.stages.residuals import saved_sharding
from sharding.trees import Tree


class MicrobatchArrays(NamedTuple):
    """Arguments of a backward that belong to its microbatch alone: arrays, or their shapes or specs.

    Attributes:
        inputs: Activations by input channel.
        residuals: Arrays that the forward saved.
        output_gradients: Gradients by output channel.
    """

    inputs: dict[str, Any]
    residuals: list[Any]
    output_gradients: dict[str, Any]


class DgradResult(NamedTuple):
    """The results of a dgrad program: arrays, or their specs.

    Attributes:
        input_gradients: By channel, for the channels whose gradient is needed.
        saved: Arrays that the wgrad program needs.
    """

    input_gradients: dict[str, Any]
    saved: list[Any]


GradientFunction = Callable[[Tree, Microbatches, Any, MicrobatchArrays], tuple[Arrays, Tree]]
"""`(parameters, batch, index, arrays) -> (input gradients, parameter gradients)`, as one device computes them."""


class SplitBackward:
    """The programs dgrad and wgrad of one stage on one submesh.

    - `dgrad(parameters, batch, index, arrays) -> DgradResult`
    - `wgrad(parameters, batch, index, kept, saved, parameter_gradients) -> parameter gradients`: the given ones, which
      are donated, plus the gradients of the microbatch. `kept` are the arrays that `kept_arrays` chooses.

    Args:
        gradients: The whole backward.
        stage_id: The stage.
        mesh: Its submesh.
        operand_shapes, operand_specs: Shapes and specs of `(parameters, batch, index, arrays)`; residuals without their
            first dimension, which stacks devices.
        input_gradient_specs: Specs of the gradients that are sent back.
        gradient_specs: Specs of the unreduced parameter gradients.
        name_suffix: Tells the names of the programs from the names of the programs for rows of other capacities.

    Attributes:
        saved_shardings: Shardings of what dgrad saves.
    """

    def __init__(
        self,
        gradients: GradientFunction,
        *,
        stage_id: StageId,
        mesh: Mesh,
        operand_shapes: tuple[Any, ...],
        operand_specs: tuple[Any, ...],
        input_gradient_specs: dict[str, P],
        gradient_specs: Tree,
        name_suffix: str = "",
    ) -> None:
        self._gradients, self._mesh = gradients, mesh
        self._program, self._results, self.saved_shardings = self._trace_split(
            operand_shapes, operand_specs, input_gradient_specs
        )
        saved_specs = [sharding.spec for sharding in self.saved_shardings]
        *same, array_specs = operand_specs
        mapped = jax.shard_map(
            self._dgrad, mesh=mesh, in_specs=operand_specs, out_specs=DgradResult(input_gradient_specs, saved_specs)
        )
        self.dgrad = named_jit(mapped, stage_id, "dgrad" + name_suffix)
        leaf_specs = jax.tree.leaves(array_specs, is_leaf=lambda leaf: isinstance(leaf, P))
        self._kept = self._program.late_operands[-len(leaf_specs) :]
        first = len(array_specs.inputs)
        self._residuals = range(first, first + len(array_specs.residuals))  # among the leaves of the arrays
        mapped = jax.shard_map(
            self._wgrad,
            mesh=mesh,
            in_specs=(*same, chosen(leaf_specs, self._kept), saved_specs, gradient_specs),
            out_specs=gradient_specs,
        )
        self.wgrad = named_jit(mapped, stage_id, "wgrad" + name_suffix, donate_argnums=(5,))

    def kept_arrays(self, arrays: MicrobatchArrays) -> list[Any]:
        """Returns the arrays of a microbatch that its wgrad reads."""
        return chosen(jax.tree.leaves(arrays), self._kept)

    def _trace_split(
        self, shapes: tuple[Any, ...], specs: tuple[Any, ...], input_gradient_specs: dict[str, P]
    ) -> tuple[SplitProgram, Any, list[NamedSharding]]:
        """Traces and splits the backward under the axes of the submesh; also returns the structure of its results."""
        traces: list[tuple[SplitProgram, Any, list[NamedSharding]]] = []

        def body(*operands: Any) -> Arrays:
            operands = _on_device(operands)
            program = jax.jit(self._gradients).trace(*operands)
            input_numbers, parameter_numbers = jax.tree.unflatten(program.out_tree, range(program.out_tree.num_leaves))
            is_early = [True] * len(jax.tree.leaves(input_numbers)) + [False] * len(jax.tree.leaves(parameter_numbers))
            split = split_traced(program, is_early)
            results, saved = split.early(jax.tree.leaves(operands))
            traces.append((split, program.out_tree, [saved_sharding(leaf, self._mesh) for leaf in saved]))
            return jax.tree.unflatten(program.out_tree, results)[0]

        jax.eval_shape(jax.shard_map(body, mesh=self._mesh, in_specs=specs, out_specs=input_gradient_specs), *shapes)
        return traces[0]

    # ------------------------------------------------------------------ bodies, as one device runs them

    def _dgrad(self, *operands: Any) -> DgradResult:
        results, saved = self._program.early(jax.tree.leaves(_on_device(operands)))
        input_gradients, _ = jax.tree.unflatten(self._results, results)
        return DgradResult(input_gradients, [leaf[None] for leaf in saved])  # to stack devices along

    def _wgrad(
        self,
        parameters: Tree,
        batch: Microbatches,
        index: jax.Array,
        kept: list[jax.Array],
        saved: list[jax.Array],
        parameter_gradients: Tree,
    ) -> Tree:
        arrays = placed(kept, self._kept)
        for number in self._residuals:
            arrays[number] = arrays[number][0] if self._kept[number] else None
        operands = [*jax.tree.leaves((parameters, batch, index)), *arrays]
        results = self._program.late(operands, [leaf[0] for leaf in saved])
        _, new_gradients = jax.tree.unflatten(self._results, results)
        return add_gradients(parameter_gradients, new_gradients)


def _on_device(operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """The operands of a backward without the dimension along which the residuals of devices are stacked."""
    *same, arrays = operands
    return (*same, arrays._replace(residuals=[leaf[0] for leaf in arrays.residuals]))
