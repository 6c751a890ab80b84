"""Edits of what decides the order of ops and how devices communicate: schedule, hints, executor, collectives."""

import random
from typing import get_args

from benchmarks.planner.edits.drafts import GivenSeconds, PlanDraft, UnitDraft
from benchmarks.planner.edits.sizes import NoOtherValueError, divisors_near, nearby, other_value
from sharding.axes import ContextTransfer
from sharding.expert_transfer import ExpertTransferChoice
from sharding.planners.problem import PlanningProblem
from sharding.plans.unit_plan import ExecutorName

_COLLECTIVES = ("all_reduce", "sequence_parallel", "ring")
"""Of `mosaic`, which needs all devices of a unit in one process, costs know no more than of `ring`."""

_SCHEDULES = ("1f1b", "interleaved", "zb-h1", "colocated")
_EXTRA = (0, 1, 2, 4, 6, 8, 12, 16)


def edit_microbatches(problem: PlanningProblem, draft: PlanDraft, unit: UnitDraft, choice: random.Random) -> None:
    """More or fewer microbatches of the step, at most four times as many, of fewer or more rows each."""
    draft.microbatches = other_value(divisors_near(problem, draft.microbatches), draft.microbatches, choice)


def edit_schedule(problem: PlanningProblem, draft: PlanDraft, unit: UnitDraft, choice: random.Random) -> None:
    """Another schedule."""
    draft.schedule = other_value(_SCHEDULES, draft.schedule, choice)


def edit_stage_seconds(problem: PlanningProblem, draft: PlanDraft, unit: UnitDraft, choice: random.Random) -> None:
    """Other seconds of stages that the schedule is given."""
    if draft.schedule not in ("interleaved", "colocated"):
        raise NoOtherValueError  # it does not read them
    draft.given_seconds = other_value(get_args(GivenSeconds), draft.given_seconds, choice)


def edit_extra_microbatches(problem: PlanningProblem, draft: PlanDraft, unit: UnitDraft, choice: random.Random) -> None:
    """More or fewer microbatches that each pipeline rank may hold."""
    before, most = unit.extra_microbatches, draft.microbatches * unit["chunks"] - 1
    sizes = [size for size in (*_EXTRA, *nearby(before)) if size <= most]
    unit.extra_microbatches = other_value(sizes, before, choice)


def edit_replica_of_microbatch(
    problem: PlanningProblem, draft: PlanDraft, unit: UnitDraft, choice: random.Random
) -> None:
    """A microbatch that another pipeline replica takes, or two that change places; or all by turns."""
    replicas = unit["pipeline_replicas"]
    if replicas == 1 or draft.microbatches < 2:
        raise NoOtherValueError
    if unit.replica_of_microbatch and choice.random() < 0.2:
        unit.replica_of_microbatch = ()
        return
    taken = list(unit.original.replica_of_microbatches(draft.microbatches))
    first, second = choice.sample(range(draft.microbatches), 2)
    if choice.random() < 0.5:
        taken[first], taken[second] = taken[second], taken[first]
    else:
        taken[first] = choice.randrange(replicas)
    unit.replica_of_microbatch = tuple(taken)


def edit_executor(problem: PlanningProblem, draft: PlanDraft, unit: UnitDraft, choice: random.Random) -> None:
    """Programs of stages instead of one program, or the other way around; of a backbone alone."""
    if unit.modules != (problem.graph.backbone.name,):
        raise NoOtherValueError
    unit.executor = other_value(get_args(ExecutorName), unit.executor, choice)


def edit_collectives(problem: PlanningProblem, draft: PlanDraft, unit: UnitDraft, choice: random.Random) -> None:
    """Other collectives of tensor ranks."""
    if unit["tp"] == 1:
        raise NoOtherValueError
    unit["collectives"] = other_value(_COLLECTIVES, unit["collectives"], choice)


def edit_context_transfer(problem: PlanningProblem, draft: PlanDraft, unit: UnitDraft, choice: random.Random) -> None:
    """Another way in which attention reaches the positions of other ranks."""
    if unit["cp"] == 1:
        raise NoOtherValueError
    unit["context_transfer"] = other_value(get_args(ContextTransfer), unit["context_transfer"], choice)


def edit_expert_transfer(problem: PlanningProblem, draft: PlanDraft, unit: UnitDraft, choice: random.Random) -> None:
    """Another way in which tokens get to their experts."""
    if unit["ep"] == 1:
        raise NoOtherValueError
    unit["expert_transfer"] = other_value(get_args(ExpertTransferChoice), unit["expert_transfer"], choice)
