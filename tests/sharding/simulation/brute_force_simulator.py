"""A second simulator, slow and plain: the longest path over tasks, each device following its own queue of parts."""

import functools
from collections.abc import Hashable

from sharding.schedules.ops import PipelineOp
from tests.sharding.steps import SimulatedStep, row_feeders

Task = tuple[PipelineOp, int]


def run(step: SimulatedStep, rendezvous: bool) -> dict[Task, tuple[float, float]]:
    """Start and end of every part on every instance."""
    parts = step.schedule.ops
    tasks = {part: [(part, number) for number in range(_instances(step, part))] for part in parts}
    queues: dict[Hashable, list[PipelineOp]] = {}
    before: dict[Task, set[Task]] = {task: set() for part in parts for task in tasks[part]}
    holders: dict[tuple[PipelineOp, int], list[Task]] = {}
    for part in parts:
        for task in tasks[part]:
            for device in _held(step, task, rendezvous):
                holders.setdefault((part, device), []).append(task)
        for device in {d for task in tasks[part] for d in _held(step, task, rendezvous)}:
            queues.setdefault(device, []).append(part)
    for device, queue in queues.items():
        for earlier, later in zip(queue[:-1], queue[1:], strict=True):
            for task in holders[later, device]:
                before[task] |= set(holders[earlier, device])

    @functools.cache
    def start(task: Task) -> float:
        return max((end(other) for other in before[task] | set(_needs(step, task, tasks))), default=0.0)

    def end(task: Task) -> float:
        return start(task) + _seconds(step, task)

    return {task: (start(task), end(task)) for task in before}


def _instances(step: SimulatedStep, part: PipelineOp) -> int:
    if part.kind in ("gather", "reduce", "norm", "share", "share_back"):
        return 1
    return len(step.devices[part.target_id if part.target_unit else part.stage_id])


def _held(step: SimulatedStep, task: Task, rendezvous: bool) -> set[int]:
    part, number = task
    if part.kind == "norm":
        return set().union(*(held.ravel().tolist() for held in step.devices.values()))
    here = step.devices[part.stage_id]
    if part.kind in ("gather", "reduce"):
        return set(here.ravel().tolist())
    if not part.target_unit:
        return set(here[number].tolist())
    if not rendezvous:
        return set()
    there = step.devices[part.target_id]
    if part.kind in ("share", "share_back"):
        return set(here.ravel().tolist()) | set(there.ravel().tolist())
    senders = row_feeders(len(here), len(there))[number]
    return set(here[senders].ravel().tolist()) | set(there[number].tolist())


def _needs(step: SimulatedStep, task: Task, tasks: dict[PipelineOp, list[Task]]) -> list[Task]:
    part, number = task
    found = []
    for need in step.work.dependencies[part]:
        if len(tasks[need]) == 1 or part.kind in ("norm", "reduce"):
            found += tasks[need]
        elif part.kind in ("hop", "hop_back"):
            found += [tasks[need][k] for k in row_feeders(len(tasks[need]), _instances(step, part))[number]]
        else:
            found.append(tasks[need][number])
    return found


def _seconds(step: SimulatedStep, task: Task) -> float:
    part, number = task
    if part.kind == "norm":
        return step.costs.norm
    if part.kind in ("share", "share_back"):
        return 0.0
    if part.kind == "hop":
        return float(step.costs.hops[part.stage_id, part.target_id][part.microbatch, number])
    if part.kind == "hop_back":
        return float(step.costs.hops_back[part.target_id, part.stage_id][part.microbatch, number])
    seconds = getattr(step.costs.stages[part.stage_id], part.kind)
    return float(seconds if part.microbatch < 0 else seconds[part.microbatch, number])
