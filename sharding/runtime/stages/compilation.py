"""Compiling programs before they are first called, so that it can be seen how many there are.

A program that is lowered and compiled here for some abstract arguments is found by its later call with such arguments,
in the caches of `jax.jit`: nothing is compiled twice, and nothing else changes. The trainer compiles all programs of a
step here before its first step.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh, NamedSharding

from sharding.runtime.stages.compiled_pipeline import CompiledPipeline
from sharding.runtime.stages.master_weights import is_partition_spec
from sharding.runtime.stages.mesh_programs import MeshPrograms
from sharding.runtime.stages.programs import StagePrograms
from sharding.runtime.stages.split_backward import MicrobatchArrays

CompilationCallback = Callable[[int, int], None]
"""Called with the number of compiled programs and the number of all programs."""


class ProgramCall(NamedTuple):
    """A jitted program and the arguments that it will be called with: shapes, types and shardings."""

    program: Any
    arguments: tuple[Any, ...]


def compile_programs(calls: Sequence[ProgramCall], callback: CompilationCallback = lambda done, total: None) -> None:
    """Compiles programs one after another.

    XLA itself divides a program among the host's cores. Where it times kernels to choose among them, as on a GPU,
    another compilation at the same time would disturb it.

    Args:
        calls: The programs of this process and their arguments.
        callback: Called at the start, and after each program.
    """
    callback(0, len(calls))
    for number, call in enumerate(calls, start=1):
        call.program.lower(*call.arguments).compile()
        callback(number, len(calls))


def abstract_arrays(shapes: Any, specs: Any, mesh: Mesh) -> Any:
    """Shapes with shardings: the specs are a tree like the shapes, or a prefix of it."""

    def with_sharding(spec: Any, subtree: Any) -> Any:
        sharding = NamedSharding(mesh, spec)
        return jax.tree.map(lambda leaf: _abstract_array(leaf, sharding), subtree)

    return jax.tree.map(with_sharding, specs, shapes, is_leaf=is_partition_spec)


class StageCalls(NamedTuple):
    """The programs of a stage in a training step that run for every microbatch.

    Attributes:
        calls: Forward and backward, and the programs that make zeros for them.
        losses: Abstract losses by name, summed over all microbatches.
        gradients: Abstract unreduced gradients, summed over all microbatches; None where there is no backward.
    """

    calls: list[ProgramCall]
    losses: dict[str, Any]
    gradients: Any


def stage_calls(by_capacity: Sequence[MeshPrograms]) -> StageCalls:
    """Forward and backward of a stage in a training step, for every capacity, with abstract arguments.

    For a compiled unit, these are its program, or its two.
    """
    programs = by_capacity[-1]
    if isinstance(programs, CompiledPipeline):
        return _pipeline_calls(programs)
    return _stage_calls([candidate for candidate in by_capacity if isinstance(candidate, StagePrograms)])


def _pipeline_calls(programs: CompiledPipeline) -> StageCalls:
    operands = abstract_arrays(programs.operand_shapes, programs.operand_specs, programs.mesh)
    results = jax.eval_shape(programs.step, *operands)
    losses = abstract_arrays(results.losses, programs.loss_specs, programs.mesh)
    gradients = None
    if programs.definition.trained_keys:
        gradients = abstract_arrays(results.parameter_gradients, programs.gradient_specs, programs.mesh)
    calls = [ProgramCall(programs.step, operands)]
    if programs.backward is not None:
        saved_state = _abstract_saved(results.saved_state, programs.saved_state_shardings)
        outputs = {
            name: [_abstract_array(array, programs.channel_shardings[name]) for array in arrays]
            for name, arrays in results.outputs.items()
        }
        calls.append(ProgramCall(programs.backward, (*operands, saved_state, outputs, gradients or {})))
    return StageCalls(calls, losses, gradients)


def _stage_calls(by_capacity: Sequence[StagePrograms]) -> StageCalls:
    programs = by_capacity[-1]
    losses = abstract_arrays(jax.eval_shape(programs.zero_losses), programs.loss_specs, programs.mesh)
    calls = [ProgramCall(programs.zero_losses, ())]
    gradients = None
    if programs.has_backward:
        gradients = abstract_arrays(jax.eval_shape(programs.zero_gradients), programs.gradient_specs, programs.mesh)
        calls.append(ProgramCall(programs.zero_gradients, ()))
    for capacity_programs in by_capacity:
        calls += _microbatch_calls(capacity_programs, losses, gradients)
    return StageCalls(calls, losses, gradients)


def _microbatch_calls(programs: StagePrograms, losses: Any, gradients: Any) -> list[ProgramCall]:
    operands = abstract_arrays(programs.operand_shapes, programs.operand_specs, programs.mesh)
    forward = ProgramCall(programs.forward, (*operands, losses))
    if not programs.has_backward:
        return [forward]
    result = jax.eval_shape(programs.forward, *operands, losses)
    residuals = _abstract_saved(result.residuals, programs.residual_shardings)
    outputs = abstract_arrays(result.outputs, programs.output_specs, programs.mesh)
    split = programs.split_backward
    if split is None:
        return [forward, ProgramCall(programs.backward, (*operands, residuals, outputs, gradients))]
    parameters, inputs, batch, index = operands
    same, arrays = (parameters, batch, index), MicrobatchArrays(inputs, residuals, outputs)
    saved = _abstract_saved(jax.eval_shape(split.dgrad, *same, arrays).saved, split.saved_shardings)
    return [
        forward,
        ProgramCall(split.dgrad, (*same, arrays)),
        ProgramCall(split.wgrad, (*same, split.kept_arrays(arrays), saved, gradients)),
    ]


def _abstract_saved(shapes: Sequence[Any], shardings: Sequence[NamedSharding]) -> list[jax.ShapeDtypeStruct]:
    """Abstract arrays that one program of a stage saves for another."""
    return [_abstract_array(leaf, sharding) for leaf, sharding in zip(shapes, shardings, strict=True)]


def _abstract_array(shape: Any, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding)


def evaluation_calls(by_capacity: Sequence[MeshPrograms]) -> list[ProgramCall]:
    """The evaluation of a stage for every capacity, and the losses of microbatches that do not run there."""
    programs = [candidate for candidate in by_capacity if isinstance(candidate, StagePrograms | CompiledPipeline)]
    evaluations = [
        ProgramCall(program.evaluate, abstract_arrays(program.operand_shapes, program.operand_specs, program.mesh))
        for program in programs
    ]
    if isinstance(programs[-1], CompiledPipeline):
        return evaluations  # all its microbatches run
    return [*evaluations, ProgramCall(programs[-1].zero_losses, ())]
