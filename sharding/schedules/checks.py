"""Checks that a schedule runs every op, in an order that can run, within its in-flight limits, before anything runs.

`build_schedule` checks every schedule, and a changed order is checked again.
"""

from sharding.schedules.in_flight import InFlightLimits, InFlightMicrobatches, check_limits
from sharding.schedules.ops import PipelineOp, Schedule, ScheduleError


def check_schedule(schedule: Schedule, max_in_flight: InFlightLimits) -> None:
    """Raises ScheduleError, naming the op at fault, if a schedule cannot run.

    Processes each run the ops of their devices in this order. They never wait for each other in a circle: of all ops
    that have not run, all processes that take part in the first one have nothing else to run before it.

    Args:
        schedule: Its ops must be the ops of its op graph, each once and after the ops it depends on.
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
