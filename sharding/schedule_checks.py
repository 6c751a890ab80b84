"""Whether a schedule does all its work in an order that can run; and the slots it leaves empty."""

import collections
import graphlib
import itertools
from collections.abc import Mapping, Sequence

from sharding.list_scheduling import InFlight
from sharding.ops import Part, Schedule, ScheduleError, Work
from sharding.stage_graph import Node, Place, lane_classes


def check_schedule(schedule: Schedule, work: Work, bounds: Mapping[Place, int]) -> None:
    """Raises ScheduleError, naming the part at fault, if a schedule cannot run.

    Args:
        schedule: The schedule.
        work: What it is to do: each part once, after the parts it needs, on the devices of its stages.
        bounds: How many microbatches each place may hold at once; the oldest under way may come on top of them.
    """
    needs, places = work.needs, work.graph.places
    done: set[Part] = set()
    held = InFlight(work)
    for op in schedule.ops:
        for part in op.parts:
            if part not in needs:
                raise ScheduleError(f"{part} is no part of this step")
            if part in done:
                raise ScheduleError(f"{part} stands twice")
            late = [need for need in needs[part] if need not in done]
            if late:
                raise ScheduleError(f"{part} stands before {late[0]}, which it needs")
            lanes = work.op(part).lanes
            if op.lanes is not lanes and not lanes <= op.lanes:
                raise ScheduleError(f"{part} does not hold devices {sorted(lanes - op.lanes)} of its stages")
            done.add(part)
            held.count(part)
            if part.kind == "forward":
                now, most = held[places[part.node]], bounds[places[part.node]]
                if now > most and not held.is_oldest(part.microbatch):
                    raise ScheduleError(f"{part}: its stage then holds {now}, not {most} at most")
    missing = [part for part in needs if part not in done]
    if missing:
        raise ScheduleError(f"{missing[0]} is missing, and {len(missing) - 1} more")
    # Devices that take part in the same ops follow the same order, so one of them speaks for all.
    classes = lane_classes(op.lanes for op in schedule.ops)
    check_no_cyclic_waits([schedule.restricted_to([members[0]]) for members in classes], work)


def check_no_cyclic_waits(queues: Sequence[Schedule], work: Work) -> None:
    """Raises ScheduleError if processes that each follow their own order come to wait for each other.

    An op runs once it is first in the queue of every process that has it, and what it needs has run.
    """
    waits: dict[tuple[Part, ...], set[tuple[Part, ...]]] = collections.defaultdict(set)
    together = {part: op.parts for queue in queues for op in queue.ops for part in op.parts}
    for queue in queues:
        for before, op in itertools.pairwise(queue.ops):
            waits[op.parts].add(before.parts)
    for part, parts in together.items():
        for need in work.needs[part]:
            if need not in together:
                raise ScheduleError(f"{part} needs {need}, which no process runs")
            waits[parts].add(together[need])
    try:
        graphlib.TopologicalSorter(waits).prepare()
    except graphlib.CycleError as error:
        circle = " before ".join(" with ".join(map(str, parts)) for parts in error.args[1])
        raise ScheduleError(f"the processes wait for each other: {circle}") from error


def slots(schedule: Schedule, work: Work) -> dict[Part, int]:
    """The slot of every forward and backward, if each takes one, starts as early as it can, and the rest takes none."""
    free: dict[int, int] = collections.defaultdict(int)
    after: dict[Part, int] = {}
    taken: dict[Part, int] = {}
    for op in schedule.ops:
        works = any(part.kind in ("forward", "backward") for part in op.parts)
        start = max((after[need] for part in op.parts for need in work.needs[part]), default=0)
        if works:
            start = max(start, *(free[lane] for lane in op.lanes))
            free |= dict.fromkeys(op.lanes, start + 1)
        after |= dict.fromkeys(op.parts, start + works)
        if works:
            taken |= dict.fromkeys(op.parts, start)
    return taken


def bubbles(schedule: Schedule, work: Work) -> dict[Node, int]:
    """For every stage, the slots of the pass in which none of its devices computes."""
    taken = slots(schedule, work)
    length = 1 + max(taken.values())
    busy: dict[int, set[int]] = collections.defaultdict(set)
    for part, slot in taken.items():
        for lane in work.graph.lanes[part.node]:
            busy[lane].add(slot)
    return {
        node: length - len(set().union(*(busy[lane] for lane in work.graph.lanes[node]))) for node in work.graph.nodes
    }
