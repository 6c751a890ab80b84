"""The bundles of a schedule: which of its ops run in one program, and the calls of these programs."""

import itertools
from collections.abc import Mapping, Sequence

from jax.sharding import Mesh

from sharding.plans.resolved.stage_graph import StageId
from sharding.runtime.pipeline import ExecutableStage, ReplicaPrograms
from sharding.runtime.stages.bundles import BundledPrograms, device_order
from sharding.runtime.stages.compilation import ProgramCall
from sharding.schedules.ops import PipelineOp, Schedule, ScheduleError

Bundle = tuple[PipelineOp, PipelineOp]


def find_bundles(schedule: Schedule) -> list[Bundle]:
    """The bundles of a schedule, in order."""
    return [(ops[0], ops[1]) for ops in schedule.by_program if len(ops) > 1]


def check_device_order(schedule: Schedule, stages: Mapping[StageId, ExecutableStage]) -> None:
    """Raises ScheduleError if the two ops of a bundle run on the same devices in different orders.

    Args:
        schedule: The schedule of all devices, so that all processes find the same.
        stages: All stages.
    """
    for first, second in find_bundles(schedule):
        orders = [device_order(_mesh(schedule, stages, op)) for op in (first, second)]
        if orders[0] != orders[1]:
            raise ScheduleError(
                f"{second} is bundled with {first}, but unit {second.unit} lists its devices as {orders[1]} and "
                f"unit {first.unit} as {orders[0]}; list the devices of both units in one order"
            )


def bundle_calls(
    schedule: Schedule,
    stages: Mapping[StageId, ExecutableStage],
    bundled_programs: BundledPrograms,
    calls: Sequence[ProgramCall],
) -> list[ProgramCall]:
    """The calls of all bundles of a schedule, for every capacity of their stages, to compile them.

    Args:
        schedule, stages: The schedule and its stages.
        bundled_programs: Where the executor finds the compiled bundles.
        calls: The calls of the programs of all stages.
    """
    call_by_program = {call.program: call for call in calls}
    pairs = dict.fromkeys(  # in the order of the schedule, which is the same in all processes
        pair
        for first, second in find_bundles(schedule)
        for pair in itertools.product(*(programs_of_op(schedule, stages, op) for op in (first, second)))
    )
    return [bundled_programs.bundle(call_by_program[first], call_by_program[second]) for first, second in pairs]


def _replica(schedule: Schedule, stages: Mapping[StageId, ExecutableStage], op: PipelineOp) -> ReplicaPrograms:
    """The programs of the pipeline replica of a stage that takes the microbatch of an op."""
    return stages[op.stage_id].pipeline_replicas[
        schedule.op_graph.stage_graph.pipeline_replica_of_microbatch(op.unit, op.microbatch)
    ]


def _mesh(schedule: Schedule, stages: Mapping[StageId, ExecutableStage], op: PipelineOp) -> Mesh:
    """The mesh that an op runs on: of one pipeline replica, or of all for an op that runs once a step."""
    if op.microbatch < 0:
        return stages[op.stage_id].meshes.all_pipeline_replicas
    return _replica(schedule, stages, op).largest.mesh


def programs_of_op(schedule: Schedule, stages: Mapping[StageId, ExecutableStage], op: PipelineOp) -> list:
    """The programs of an op, one for each capacity; none of a reduction where nothing trains."""
    if op.microbatch >= 0:
        return [getattr(programs, op.kind) for programs in _replica(schedule, stages, op).by_capacity]
    stage = stages[op.stage_id]
    program = stage.gather if op.kind == "gather" else stage.reduce
    return [] if program is None else [program]
