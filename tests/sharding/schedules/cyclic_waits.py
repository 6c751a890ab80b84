"""Whether processes that each follow an order of their own would wait for each other in a circle."""

import collections
import graphlib
import itertools
from collections.abc import Sequence

from sharding.schedules.ops import PipelineOp, Schedule, ScheduleError


def check_restricted_orders(schedule: Schedule) -> None:
    """Raises ScheduleError if processes of one device each, which run what a schedule has for it, would wait so."""
    classes = schedule.op_graph.stage_graph.device_classes  # devices that run the same ops follow the same order
    check_no_cyclic_waits([schedule.restricted_to([members[0]]) for members in classes])


def check_no_cyclic_waits(queues: Sequence[Schedule]) -> None:
    """Raises ScheduleError if processes that each follow their own order would wait for each other.

    An op runs once it is first in the queue of every process that has it, and its dependencies have run. A bundle is
    one program: it waits for the dependencies of both its ops, and what depends on either waits for all of it.

    Args:
        queues: The schedule of each process, all of one op graph.
    """
    waits_for: dict[PipelineOp, set[PipelineOp]] = collections.defaultdict(set)
    queued = dict.fromkeys(op for queue in queues for op in queue.ops)  # in order, so that messages are reproducible
    program_of = _programs_of(queues)
    for queue in queues:
        for earlier, later in itertools.pairwise(dict.fromkeys(program_of.get(op, op) for op in queue.ops)):
            waits_for[later].add(earlier)
    for op in queued:
        for dependency in queues[0].op_graph.dependencies[op]:
            if dependency not in queued:
                raise ScheduleError(f"{op} needs {dependency}, which no process runs")
            waits_for[program_of.get(op, op)].add(program_of.get(dependency, dependency))
    try:
        graphlib.TopologicalSorter(waits_for).prepare()
    except graphlib.CycleError as error:
        bundled_with = {program: f"{program} with {op}" for op, program in program_of.items()}
        cycle = " before ".join(bundled_with.get(op, str(op)) for op in error.args[1])
        raise ScheduleError(f"the processes wait for each other: {cycle}") from error


def _programs_of(queues: Sequence[Schedule]) -> dict[PipelineOp, PipelineOp]:
    """For every bundled op, the op that it runs with; raises ScheduleError if processes disagree on that."""
    programs: dict[PipelineOp, PipelineOp | None] = {}
    for queue in queues:
        for before, op in zip((None, *queue.ops[:-1]), queue.ops, strict=True):
            program = before if op in queue.bundled else None
            if programs.setdefault(op, program) != program:
                raise ScheduleError(
                    f"the processes disagree on what {op} is bundled with: {programs[op] or 'nothing'} or "
                    f"{program or 'nothing'}"
                )
    return {op: program for op, program in programs.items() if program}
