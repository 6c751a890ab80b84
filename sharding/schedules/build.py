"""The schedules that a plan can name, and the checked schedule of a plan's training step or evaluation."""

import dataclasses
from collections.abc import Callable, Mapping

from sharding.plans.plan import Plan, ScheduleName
from sharding.plans.stage_graph import PipelineRank, StageEdge, StageGraph, StageId, stage_graph
from sharding.schedules.checks import check_schedule
from sharding.schedules.interleaved_1f1b import interleaved, interleaved_in_flight
from sharding.schedules.one_f_one_b import gpipe, gpipe_in_flight, one_f_one_b, one_f_one_b_in_flight
from sharding.schedules.ops import OpGraph, Schedule
from sharding.specs.modules import ModuleGraph


@dataclasses.dataclass(frozen=True)
class SchedulePolicy:
    """A named schedule.

    Attributes:
        order: Orders the ops of a pass.
        max_in_flight: How many microbatches each pipeline rank may then hold at once.
    """

    order: Callable[[OpGraph], Schedule]
    max_in_flight: Callable[[OpGraph], Mapping[PipelineRank, int]]


SCHEDULE_POLICIES: dict[ScheduleName, SchedulePolicy] = {
    "gpipe": SchedulePolicy(gpipe, gpipe_in_flight),
    "1f1b": SchedulePolicy(one_f_one_b, one_f_one_b_in_flight),
    "interleaved": SchedulePolicy(interleaved, interleaved_in_flight),
}


def training_op_graph(
    plan: Plan, graph: ModuleGraph, trained_stages: frozenset[StageId], shares: tuple[StageEdge, ...] = ()
) -> OpGraph:
    """All ops of a training step; the arguments are those of `build_schedule`."""
    stages = stage_graph(plan, graph)
    return OpGraph(
        stage_graph=stages,
        microbatches=plan.microbatches,
        backward_stages=stages.with_descendants(trained_stages),
        trained_stages=trained_stages,
        shares=shares,
    )


def build_schedule(
    plan: Plan, graph: ModuleGraph, trained_stages: frozenset[StageId], shares: tuple[StageEdge, ...] = ()
) -> Schedule:
    """The checked schedule of a training step.

    A stage runs a backward if it trains, or if a stage that feeds it, directly or through others, does.

    Args:
        plan: The plan; its `schedule` names the policy.
        graph: The model's modules.
        trained_stages: Stages with parameters that train; a stage that borrows such a parameter is one.
        shares: Pairs (owner, borrower) of stages with a tied parameter, such as tied embeddings.
    """
    op_graph = training_op_graph(plan, graph, trained_stages, shares)
    policy = SCHEDULE_POLICIES[plan.schedule]
    schedule = policy.order(op_graph)
    check_schedule(schedule, policy.max_in_flight(op_graph))
    return schedule


def build_evaluation_schedule(plan: Plan, graph: ModuleGraph, shares: tuple[StageEdge, ...] = ()) -> Schedule:
    """The checked schedule of an evaluation with as many microbatches as a training step has."""
    schedule = forward_only(stage_graph(plan, graph), plan.microbatches, shares)
    check_schedule(schedule, interleaved_in_flight(schedule.op_graph))
    return schedule


def forward_only(graph: StageGraph, microbatches: int, shares: tuple[StageEdge, ...] = ()) -> Schedule:
    """The order of an evaluation: weights first, then forwards, in the order of interleaved 1F1B."""
    return interleaved(OpGraph(stage_graph=graph, microbatches=microbatches, shares=shares, with_update=False))
