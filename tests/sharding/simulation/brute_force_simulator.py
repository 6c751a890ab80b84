"""A second simulator, slow and simple: the longest path over tasks, with a queue of ops for each device."""

import functools
import itertools
from collections.abc import Hashable

from sharding.schedules.ops import PipelineOp
from tests.sharding.steps import SimulatedStep, overlapping_replicas

Task = tuple[PipelineOp, int]


def run(step: SimulatedStep, rendezvous: bool) -> dict[Task, tuple[float, float]]:
    """Start and end of every op on every replica."""
    ops = step.schedule.ops
    tasks = {op: [(op, number) for number in range(_instances(step, op))] for op in ops}
    queues: dict[Hashable, list[PipelineOp]] = {}
    before: dict[Task, set[Task]] = {task: set() for op in ops for task in tasks[op]}
    holders: dict[tuple[PipelineOp, int], list[Task]] = {}
    for op in ops:
        for task in tasks[op]:
            for device in _held(step, task, rendezvous):
                holders.setdefault((op, device), []).append(task)
        for device in {d for task in tasks[op] for d in _held(step, task, rendezvous)}:
            queues.setdefault(device, []).append(op)
    for device, queue in queues.items():
        for earlier, later in zip(queue[:-1], queue[1:], strict=True):
            for task in holders[later, device]:
                before[task] |= set(holders[earlier, device])

    bundles = _bundles(step, tasks)

    @functools.cache
    def start(task: Task) -> float:
        together = bundles.get(task, frozenset([task]))
        awaited = {other for task in together for other in before[task] | set(_needs(step, task, tasks))}
        return max((end(other) for other in awaited - together), default=0.0)

    def end(task: Task) -> float:
        return start(task) + (_bundle_seconds(step, bundles[task]) if task in bundles else _seconds(step, task))

    return {task: (start(task), end(task)) for task in before}


def _bundles(step: SimulatedStep, tasks: dict[PipelineOp, list[Task]]) -> dict[Task, frozenset[Task]]:
    """For every task of a bundle, all that must start together, because they share devices with each other."""
    bundle_of_task: dict[Task, frozenset[Task]] = {}
    for first, second in itertools.pairwise(step.schedule.ops):
        if second not in step.schedule.bundled:
            continue
        apart = {*tasks[first], *tasks[second]}
        while apart:
            together, devices = set(), _held(step, min(apart), False)
            while joining := {task for task in apart if not devices.isdisjoint(_held(step, task, False))}:
                together |= joining
                apart -= joining
                devices = devices.union(*(_held(step, task, False) for task in joining))
            bundle_of_task |= dict.fromkeys(together, frozenset(together))
    return bundle_of_task


def _bundle_seconds(step: SimulatedStep, together: frozenset[Task]) -> float:
    """Seconds of both ops on their slowest replicas, less what one computes while the other waits."""
    one, other = ([task for task in together if task[0] == op] for op in sorted({op for op, _ in together}))
    totals = [max(_seconds(step, task) for task in op_tasks) for op_tasks in (one, other)]
    computes = [max(_seconds(step, task) - _waits(step, task) for task in op_tasks) for op_tasks in (one, other)]
    waits = [total - compute for total, compute in zip(totals, computes, strict=True)]
    return sum(totals) - min(waits[0], computes[1]) - min(waits[1], computes[0])


def _waits(step: SimulatedStep, task: Task) -> float:
    op, number = task
    if op.microbatch < 0:
        return _seconds(step, task)
    if op.kind == "wgrad":
        return 0.0
    return float(getattr(step.costs.stages[op.stage_id], f"{op.kind}_communication")[op.microbatch, number])


def _instances(step: SimulatedStep, op: PipelineOp) -> int:
    if op.kind in ("gather", "reduce", "global_norm", "send_tied_weight", "send_tied_gradient"):
        return 1
    return len(step.replicas(op.target_id if op.target_unit else op.stage_id, op.microbatch))


def _held(step: SimulatedStep, task: Task, rendezvous: bool) -> set[int]:
    op, number = task
    if op.kind == "global_norm":
        return set().union(*(held.ravel().tolist() for held in step.devices.values()))
    here = step.replicas(op.stage_id, op.microbatch)
    if op.kind in ("gather", "reduce"):
        return set(here.ravel().tolist())
    if not op.target_unit:
        return set(here[number].tolist())
    if not rendezvous:
        return set()
    there = step.replicas(op.target_id, op.microbatch)
    if op.kind in ("send_tied_weight", "send_tied_gradient"):
        return set(here.ravel().tolist()) | set(there.ravel().tolist())
    senders = overlapping_replicas(len(here), len(there))[number]
    return set(here[senders].ravel().tolist()) | set(there[number].tolist())


def _needs(step: SimulatedStep, task: Task, tasks: dict[PipelineOp, list[Task]]) -> list[Task]:
    op, number = task
    needs = []
    for need in step.op_graph.dependencies[op]:
        if len(tasks[need]) == 1 or op.kind in ("global_norm", "reduce"):
            needs += tasks[need]
        elif op.kind in ("hop", "gradient_hop"):
            needs += [tasks[need][k] for k in overlapping_replicas(len(tasks[need]), _instances(step, op))[number]]
        else:
            needs.append(tasks[need][number])
    return needs


def _seconds(step: SimulatedStep, task: Task) -> float:
    op, number = task
    if op.kind == "global_norm":
        return step.costs.global_norm
    if op.kind in ("send_tied_weight", "send_tied_gradient"):
        return 0.0
    if op.kind == "hop":
        return float(step.costs.hops[op.stage_id, op.target_id][op.microbatch, number])
    if op.kind == "gradient_hop":
        return float(step.costs.gradient_hops[op.target_id, op.stage_id][op.microbatch, number])
    stage = step.costs.stages[op.stage_id]
    return float(getattr(stage, op.kind) if op.microbatch < 0 else stage.of_pass(op.kind)[op.microbatch, number])
