"""Whether a schedule does all its work in an order that can run; and the slots it leaves empty."""

import collections
from collections.abc import Mapping, Sequence

from sharding.list_scheduling import InFlight
from sharding.ops import Op, Part, Schedule, ScheduleError, Work
from sharding.stage_graph import Node


def check_schedule(schedule: Schedule, work: Work, bounds: Mapping[Node, int]) -> None:
    """Raises ScheduleError, naming the part at fault, if a schedule cannot run.

    Args:
        schedule: The schedule.
        work: What it is to do: each part once, after the parts it needs, on the devices of its stages.
        bounds: How many microbatches each stage may hold at once.
    """
    needs = work.needs
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
            lacking = work.op(part).lanes - op.lanes
            if lacking:
                raise ScheduleError(f"{part} does not hold devices {sorted(lacking)} of its stages")
            done.add(part)
            held.count(part)
            if part.kind == "forward" and held[part.node] > bounds[part.node]:
                raise ScheduleError(f"{part}: its stage then holds {held[part.node]}, not {bounds[part.node]} at most")
    missing = [part for part in needs if part not in done]
    if missing:
        raise ScheduleError(f"{missing[0]} is missing, and {len(missing) - 1} more")
    check_no_cyclic_waits([schedule.restricted_to([lane]) for lane in sorted(work.graph.all_lanes)], work)


def check_no_cyclic_waits(queues: Sequence[Schedule], work: Work) -> None:
    """Raises ScheduleError if processes that each follow their own order come to wait for each other.

    An op runs once it is first in the queue of every process that has it, and what it needs has run.
    """
    rest = [collections.deque(queue.ops) for queue in queues]
    members: dict[Op, list[collections.deque[Op]]] = collections.defaultdict(list)
    for queue in rest:
        for op in queue:
            members[op].append(queue)
    done: set[Part] = set()
    heads = {queue[0] for queue in rest if queue}
    while heads:
        runs = [
            op
            for op in heads
            if all(queue[0] == op for queue in members[op])
            and done.issuperset(need for part in op.parts for need in work.needs[part])
        ]
        if not runs:
            stuck = " and ".join(sorted(" with ".join(map(str, op.parts)) for op in heads))
            raise ScheduleError(f"the processes wait for each other: {stuck} cannot run")
        for op in runs:
            done.update(op.parts)
            heads.discard(op)
            for queue in members[op]:
                queue.popleft()
            heads.update(queue[0] for queue in members[op] if queue)


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
