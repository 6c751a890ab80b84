"""Bundles whose programs are the same, so that one of them stands for the others."""

import itertools
from collections.abc import Mapping

from mmjax.training.dry_run.abstract_stages import AbstractStep
from sharding.plans.resolved.stage_graph import StageId
from sharding.runtime.bundled_ops import find_bundles, programs_of_op
from sharding.runtime.stages.bundles import BundledPrograms
from sharding.runtime.stages.compilation import ProgramCall
from sharding.schedules.ops import PipelineOp


def distinct_bundles(step: AbstractStep, alike: Mapping[StageId, StageId]) -> list[tuple[ProgramCall, int]]:
    """The bundles to compile, of the largest capacities of rows, each with how many it stands for.

    Args:
        step: The step.
        alike: By stage, the first stage whose programs are the same.
    """
    executable = {stage_id: stage.executable for stage_id, stage in step.stages.items()}
    bundled, calls = BundledPrograms(), dict[object, ProgramCall]()

    def call_of(op: PipelineOp) -> ProgramCall | None:
        programs = programs_of_op(step.schedule, executable, op)
        if not programs:
            return None
        if programs[-1] not in calls:
            stage = step.stages[op.stage_id]
            replicas = range(len(stage.executable.pipeline_replicas))
            of_stage = (*stage.step_calls, *itertools.chain(*map(stage.microbatch_calls, replicas)))
            calls.update((call.program, call) for call in of_stage)
        return calls[programs[-1]]

    groups: dict[tuple[StageId, str, StageId, str], list[tuple[PipelineOp, PipelineOp]]] = {}
    for first, second in find_bundles(step.schedule):
        key = (alike[first.stage_id], first.kind, alike[second.stage_id], second.kind)
        groups.setdefault(key, []).append((first, second))
    made = []
    for pairs in groups.values():
        first, second = map(call_of, pairs[0])
        if first is not None and second is not None:
            distinct = {(first.stage_id, second.stage_id) for first, second in pairs}
            made.append((bundled.bundle(first, second), len(distinct)))
    return made
