"""The ops of units whose whole step is one program.

A forward says that the inputs of its microbatch have come; the last one runs the program, whichever it is. The
backwards find the program run: only the hops that follow each take something from it.
"""

import functools
from collections.abc import Mapping
from typing import Any

from sharding.plans.stage_graph import StageCopy, StageId
from sharding.runtime.pipeline import ExecutableStage
from sharding.runtime.stages.compilation import ProgramCall
from sharding.runtime.stages.compiled_pipeline import CompiledPipeline, PipelineStepResult
from sharding.runtime.step_buffers import OpCall, StageEvaluation, StepBuffers
from sharding.schedules.ops import PipelineOp


class PipelineOps:
    """Forwards in training and in evaluation, of stages that are a whole unit.

    Args:
        stages: All stages.
    """

    def __init__(self, stages: Mapping[StageId, ExecutableStage]) -> None:
        self._stages = stages

    def forward(self, buffers: StepBuffers, op: PipelineOp) -> OpCall | None:
        """The step of the unit, if this is the last of its forwards."""
        programs = self._programs(op.stage_id)
        if not self._stages[op.stage_id].is_local or not _all_begun(buffers, op, programs):
            return None
        store = functools.partial(_store_step, buffers, (op.stage_id, 0))
        return OpCall(ProgramCall(programs.step, _operands(buffers, op, programs)), store)

    def evaluate(self, buffers: StepBuffers, op: PipelineOp) -> dict[int, StageEvaluation]:
        """Losses and metrics of all microbatches, if this is the last of the unit's forwards; else none."""
        programs = self._programs(op.stage_id)
        if not _all_begun(buffers, op, programs):
            return {}
        results = programs.evaluate(*_operands(buffers, op, programs))
        return {number: StageEvaluation(*result) for number, result in enumerate(results)}

    def _programs(self, stage_id: StageId) -> CompiledPipeline:
        programs = self._stages[stage_id].programs
        assert isinstance(programs, CompiledPipeline)
        return programs


def _all_begun(buffers: StepBuffers, op: PipelineOp, programs: CompiledPipeline) -> bool:
    begun = buffers.begun.setdefault(op.stage_id, set())
    begun.add(op.microbatch)
    return len(begun) == programs.microbatches


def _operands(buffers: StepBuffers, op: PipelineOp, programs: CompiledPipeline) -> tuple[Any, ...]:
    """Weights, the inputs of all microbatches, which are not needed again, and the batch."""
    inputs = {
        name: [buffers.inputs.pop((name, number)) for number in range(programs.microbatches)]
        for name in programs.definition.input_channels
    }
    return buffers.compute_weights[op.stage_id], inputs, buffers.batch.stages[op.stage_id, 0]


def _store_step(buffers: StepBuffers, place: StageCopy, result: PipelineStepResult) -> PipelineStepResult:
    buffers.losses[place] = result.losses
    buffers.unreduced_gradients[place] = result.parameter_gradients
    buffers.input_gradients |= {
        (name, number): gradient
        for name, gradients in result.input_gradients.items()
        for number, gradient in enumerate(gradients)
    }
    return result
