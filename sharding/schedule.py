"""Schedules of a step over the whole graph of stages: GPipe, 1F1B, and forward only."""

import dataclasses
from collections.abc import Callable, Mapping

from sharding.list_scheduling import list_schedule
from sharding.ops import Op, Part, Schedule, ScheduleError, Work
from sharding.plan import Plan
from sharding.schedule_checks import bubbles, check_no_cyclic_waits, check_schedule, slots
from sharding.specs import ModuleGraph
from sharding.stage_graph import Edge, Node, StageGraph, stage_graph

__all__ = [
    "Edge",
    "Node",
    "Op",
    "Part",
    "Schedule",
    "ScheduleError",
    "StageGraph",
    "Work",
    "bubbles",
    "build_evaluation",
    "build_schedule",
    "check_no_cyclic_waits",
    "check_schedule",
    "forward_only",
    "gpipe",
    "gpipe_bounds",
    "one_f_one_b",
    "one_f_one_b_bounds",
    "slots",
    "stage_graph",
]


def gpipe(work: Work) -> Schedule:
    """All forwards of a stage, then all its backwards (GPipe, arXiv 1811.06965, section 2.3)."""
    return list_schedule(work, gpipe_bounds(work), forwards_first=True)


def gpipe_bounds(work: Work) -> dict[Node, int]:
    """Every stage may hold every microbatch."""
    return dict.fromkeys(work.graph.nodes, work.microbatches)


def one_f_one_b(work: Work) -> Schedule:
    """A backward as soon as there is one (PipeDream-Flush, arXiv 2006.09503, section 2.2), over a graph of stages."""
    return list_schedule(work, one_f_one_b_bounds(work), forwards_first=False)


def one_f_one_b_bounds(work: Work) -> dict[Node, int]:
    """A stage holds as many microbatches as there are stages from it to the farthest sink.

    On a chain of p stages that is the textbook's p - i of stage i. On a graph, a branch that is shorter than another
    beside it holds no more than it needs to keep its own chain full.
    """
    return dict(work.graph.heights)


def forward_only(graph: StageGraph, microbatches: int, shares: tuple[Edge, ...] = ()) -> Schedule:
    """The order of an evaluation: weights first, then forwards, the lowest microbatch and the deepest stage first."""
    return one_f_one_b(Work(graph, microbatches, shares=shares, updates=False))


@dataclasses.dataclass(frozen=True)
class Policy:
    """How a schedule is made, and how many microbatches a stage may then hold."""

    order: Callable[[Work], Schedule]
    bounds: Callable[[Work], Mapping[Node, int]]


POLICIES = {
    "gpipe": Policy(gpipe, gpipe_bounds),
    "1f1b": Policy(one_f_one_b, one_f_one_b_bounds),
}


def build_schedule(plan: Plan, graph: ModuleGraph, trains: frozenset[Node], shares: tuple[Edge, ...] = ()) -> Schedule:
    """The checked schedule of a training step.

    A stage has a backward if it trains, or if a stage that feeds it, directly or through others, does.

    Args:
        plan: The plan, which names the policy.
        graph: The model's modules.
        trains: Stages (unit, number) with parameters that train; a stage that borrows such a parameter is one.
        shares: Pairs (owner, borrower) of stages with a common parameter, such as tied embeddings.
    """
    stages = stage_graph(plan, graph)
    work = Work(stages, plan.microbatches, stages.with_descendants(trains), trains, shares)
    policy = POLICIES[plan.schedule]
    schedule = policy.order(work)
    check_schedule(schedule, work, policy.bounds(work))
    return schedule


def build_evaluation(plan: Plan, graph: ModuleGraph, shares: tuple[Edge, ...] = ()) -> Schedule:
    """The checked schedule of an evaluation of as many microbatches as a step has."""
    work = Work(stage_graph(plan, graph), plan.microbatches, shares=shares, updates=False)
    schedule = forward_only(work.graph, work.microbatches, shares)
    check_schedule(schedule, work, one_f_one_b_bounds(work))
    return schedule
