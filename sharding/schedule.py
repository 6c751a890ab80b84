"""Schedules of a step over the whole graph of stages: GPipe, 1F1B, interleaved 1F1B, and forward only."""

import dataclasses
from collections.abc import Callable, Mapping

from sharding.interleaving import interleaved, interleaved_bounds, turns
from sharding.list_scheduling import Key, list_schedule
from sharding.ops import Op, Part, Schedule, ScheduleError, Work
from sharding.plan import Plan
from sharding.schedule_checks import bubbles, check_no_cyclic_waits, check_schedule, slots
from sharding.specs import ModuleGraph
from sharding.stage_graph import Edge, Node, Place, StageGraph, stage_graph

__all__ = [
    "Edge",
    "Node",
    "Op",
    "Part",
    "Place",
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
    "interleaved",
    "interleaved_bounds",
    "one_f_one_b",
    "one_f_one_b_bounds",
    "slots",
    "stage_graph",
]


def gpipe(work: Work) -> Schedule:
    """All forwards of a place, then all its backwards (GPipe, arXiv 1811.06965, section 2.3)."""
    everything = gpipe_bounds(work)
    order = {place: turns(work, place, warm_up=everything[place]) for place in everything}
    return list_schedule(work, everything, _by_microbatch(work), order)


def gpipe_bounds(work: Work) -> dict[Place, int]:
    """Every stage may hold every microbatch."""
    return {place: len(nodes) * work.microbatches for place, nodes in work.graph.chunks.items()}


def one_f_one_b(work: Work) -> Schedule:
    """A backward as soon as there is one (PipeDream-Flush, arXiv 2006.09503, section 2.2), over a graph of stages."""
    return list_schedule(work, one_f_one_b_bounds(work), _by_microbatch(work))


def one_f_one_b_bounds(work: Work) -> dict[Place, int]:
    """A place holds as many microbatches as there are stages from its first to the farthest sink.

    On a chain of p stages that is the textbook's p - i of stage i. On a graph, a branch that is shorter than another
    beside it holds no more than it needs to keep its own chain full.
    """
    return {place: work.graph.heights[nodes[0]] for place, nodes in work.graph.chunks.items()}


def _by_microbatch(work: Work) -> Key:
    """Backwards first; then the lowest microbatch and the deepest stage."""
    depths = work.graph.depths
    return lambda part: (part.kind != "backward", part.microbatch, -depths[part.node])


def forward_only(graph: StageGraph, microbatches: int, shares: tuple[Edge, ...] = ()) -> Schedule:
    """The order of an evaluation: weights first, then forwards, as `interleaved` orders them."""
    return interleaved(Work(graph, microbatches, shares=shares, updates=False))


@dataclasses.dataclass(frozen=True)
class Policy:
    """How a schedule is made, and how many microbatches a place may then hold."""

    order: Callable[[Work], Schedule]
    bounds: Callable[[Work], Mapping[Place, int]]


POLICIES = {
    "gpipe": Policy(gpipe, gpipe_bounds),
    "1f1b": Policy(one_f_one_b, one_f_one_b_bounds),
    "interleaved": Policy(interleaved, interleaved_bounds),
}


def training_work(plan: Plan, graph: ModuleGraph, trains: frozenset[Node], shares: tuple[Edge, ...] = ()) -> Work:
    """All that a training step of a plan has to do; its arguments are those of `build_schedule`."""
    stages = stage_graph(plan, graph)
    return Work(stages, plan.microbatches, stages.with_descendants(trains), trains, shares)


def build_schedule(plan: Plan, graph: ModuleGraph, trains: frozenset[Node], shares: tuple[Edge, ...] = ()) -> Schedule:
    """The checked schedule of a training step.

    A stage has a backward if it trains, or if a stage that feeds it, directly or through others, does.

    Args:
        plan: The plan, which names the policy.
        graph: The model's modules.
        trains: Stages (unit, number) with parameters that train; a stage that borrows such a parameter is one.
        shares: Pairs (owner, borrower) of stages with a common parameter, such as tied embeddings.
    """
    work = training_work(plan, graph, trains, shares)
    policy = POLICIES[plan.schedule]
    schedule = policy.order(work)
    check_schedule(schedule, work, policy.bounds(work))
    return schedule


def build_evaluation(plan: Plan, graph: ModuleGraph, shares: tuple[Edge, ...] = ()) -> Schedule:
    """The checked schedule of an evaluation of as many microbatches as a step has."""
    work = Work(stage_graph(plan, graph), plan.microbatches, shares=shares, updates=False)
    schedule = forward_only(work.graph, work.microbatches, shares)
    check_schedule(schedule, work, interleaved_bounds(work))
    return schedule
