"""Checks that a schedule runs every op, in an order that can run, within its in-flight limits."""

import collections
import graphlib
import itertools
from collections.abc import Sequence

from sharding.schedules.in_flight import InFlightLimits, InFlightMicrobatches, check_limits
from sharding.schedules.ops import PipelineOp, Schedule, ScheduleError


def check_schedule(schedule: Schedule, max_in_flight: InFlightLimits) -> None:
    """Raises ScheduleError, naming the op at fault, if a schedule cannot run.

    Args:
        schedule: Its ops must be those of its op graph, each once and after the ops it depends on.
        max_in_flight: How many microbatches each rank may hold at once; the oldest one in flight may come on top.
    """
    op_graph = schedule.op_graph
    dependencies = op_graph.dependencies
    check_limits(op_graph, max_in_flight)
    finished: set[PipelineOp] = set()
    in_flight = InFlightMicrobatches(op_graph)
    for op in schedule.ops:
        if op not in dependencies:
            raise ScheduleError(f"{op} is no op of this step")
        if op in finished:
            raise ScheduleError(f"{op} is scheduled twice")
        unmet = [dependency for dependency in dependencies[op] if dependency not in finished]
        if unmet:
            raise ScheduleError(f"{op} is scheduled before {unmet[0]}, which it needs")
        finished.add(op)
        in_flight.record(op)
        if op.kind == "forward":
            rank = op_graph.stage_graph.rank_of_microbatch(op.stage_id, op.microbatch)
            if in_flight[rank] > max_in_flight[rank] and not in_flight.is_oldest(op.microbatch):
                raise ScheduleError(f"{op}: its stage then holds {in_flight[rank]}, not {max_in_flight[rank]} at most")
    _check_bundles(schedule)
    missing = [op for op in dependencies if op not in finished]
    if missing:
        raise ScheduleError(f"{missing[0]} is missing, and {len(missing) - 1} more")
    # Devices that run the same ops follow the same order, so one of them stands for all.
    classes = op_graph.stage_graph.device_classes
    check_no_cyclic_waits([schedule.restricted_to([members[0]]) for members in classes])


def _check_bundles(schedule: Schedule) -> None:
    """Raises ScheduleError if an op cannot run in one program with the op before it."""
    op_graph, bundled = schedule.op_graph, schedule.bundled
    if unknown := bundled.difference(schedule.ops):
        raise ScheduleError(f"{min(unknown)} is bundled, but not scheduled")
    for before, op in zip((None, *schedule.ops[:-1]), schedule.ops, strict=True):
        if op not in bundled:
            continue
        if before is None or before.kind not in ("forward", "backward", "gather", "reduce") or before in bundled:
            raise ScheduleError(f"{op} is bundled with {before}; let it follow a forward, backward, gather or reduce")
        if before.unit == op.unit or op.kind not in ("forward", "backward"):
            raise ScheduleError(f"{op} is bundled with {before}; bundle a forward or backward with another unit's op")
        if op_graph.devices_of(before) != op_graph.devices_of(op):
            raise ScheduleError(f"{op} is bundled with {before}, which runs on other devices")
        if before in op_graph.dependencies[op]:
            raise ScheduleError(f"{op} is bundled with {before}, which it needs")


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
