"""The ops of units whose whole step is one program, or one of forwards and one of backwards.

A forward says that the inputs of its microbatch have come; the last one runs the program, whichever it is. Backwards
find it run, or say that the gradients of the outputs have come, and the last one runs the program of backwards. Hops
each take something from what a program has returned. The executor calls `PipelineOps` for these units instead of
`MicrobatchOps`.
"""

import functools
from collections.abc import Iterable, Mapping
from typing import Any

import jax

from sharding.plans.resolved.stage_graph import StageId, StageReplica
from sharding.runtime.pipeline import ExecutableStage
from sharding.runtime.stages.compilation import ProgramCall
from sharding.runtime.stages.compiled_pipeline import CompiledPipeline, PipelineStepResult
from sharding.runtime.stages.definition import BackwardResult
from sharding.runtime.step_buffers import Activations, OpCall, StageEvaluation, StepBuffers
from sharding.schedules.ops import PipelineOp


class PipelineOps:
    """Forwards and backwards in training, and forwards in evaluation, of stages that are a whole unit.

    Args:
        stages: All stages.
    """

    def __init__(self, stages: Mapping[StageId, ExecutableStage]) -> None:
        self._stages = stages

    def forward(self, buffers: StepBuffers, op: PipelineOp) -> OpCall | None:
        """The step of the unit, or its forwards, if this is the last of these."""
        programs = self._programs(op.stage_id)
        if not self._stages[op.stage_id].is_local or not _all_begun(buffers, op, programs):
            return None
        inputs = buffers.inputs if programs.backward is None else dict(buffers.inputs)  # there, for the backwards
        store = functools.partial(_store_step, buffers, (op.stage_id, 0))
        return OpCall(ProgramCall(programs.step, _operands(buffers, op, programs, inputs)), store)

    def backward(self, buffers: StepBuffers, op: PipelineOp) -> OpCall | None:
        """The backwards of the unit, if this is the last of them and its step has not run them."""
        programs, place = self._programs(op.stage_id), (op.stage_id, 0)
        if not self._stages[op.stage_id].is_local or programs.backward is None:
            return None
        if not _all_begun(buffers, op, programs):
            return None
        operands = (
            *_operands(buffers, op, programs, buffers.inputs),
            buffers.saved_state.pop(op.stage_id),
            _of_microbatches(buffers.output_gradients, programs.definition.output_channels, programs.microbatches),
            buffers.unreduced_gradients[place],
        )
        return OpCall(ProgramCall(programs.backward, operands), functools.partial(_store_backward, buffers, place))

    def evaluate(self, buffers: StepBuffers, op: PipelineOp) -> dict[int, StageEvaluation]:
        """Losses and metrics of all microbatches, if this is the last of the unit's forwards; else none."""
        programs = self._programs(op.stage_id)
        if not _all_begun(buffers, op, programs):
            return {}
        results = programs.evaluate(*_operands(buffers, op, programs, buffers.inputs))
        for number, result in enumerate(results):
            buffers.outputs |= {(name, number): array for name, array in result.outputs.items()}
        return {
            number: StageEvaluation(result.losses, result.auxiliary_metrics) for number, result in enumerate(results)
        }

    def _programs(self, stage_id: StageId) -> CompiledPipeline:
        programs = self._stages[stage_id].programs
        assert isinstance(programs, CompiledPipeline)
        return programs


def _all_begun(buffers: StepBuffers, op: PipelineOp, programs: CompiledPipeline) -> bool:
    begun = buffers.begun.setdefault((op.kind, op.stage_id), set())
    begun.add(op.microbatch)
    return len(begun) == programs.microbatches


def _operands(buffers: StepBuffers, op: PipelineOp, programs: CompiledPipeline, inputs: Activations) -> tuple[Any, ...]:
    """Returns weights, the inputs of all microbatches, which are removed from `inputs`, and the batch."""
    taken = _of_microbatches(inputs, programs.definition.input_channels, programs.microbatches)
    return buffers.compute_weights[op.stage_id], taken, buffers.batch.stages[op.stage_id, 0]


def _of_microbatches(arrays: Activations, channels: Iterable[str], count: int) -> dict[str, list[jax.Array | None]]:
    """Removes the arrays of all microbatches from `arrays`, and returns them by channel."""
    return {name: [arrays.pop((name, number)) for number in range(count)] for name in channels}


def _store_step(buffers: StepBuffers, place: StageReplica, result: PipelineStepResult) -> PipelineStepResult:
    stage_id, _ = place
    buffers.losses[place] = result.losses
    buffers.unreduced_gradients[place] = result.parameter_gradients
    buffers.saved_state[stage_id] = result.saved_state
    _store_channels(buffers.outputs, result.outputs)
    _store_channels(buffers.input_gradients, result.input_gradients)
    return result


def _store_backward(buffers: StepBuffers, place: StageReplica, result: BackwardResult) -> BackwardResult:
    buffers.unreduced_gradients[place] = result.parameter_gradients
    _store_channels(buffers.input_gradients, result.input_gradients)
    return result


def _store_channels(arrays: Activations, new: dict[str, list[jax.Array]]) -> None:
    for name, microbatch_arrays in new.items():
        arrays |= {(name, number): array for number, array in enumerate(microbatch_arrays)}
