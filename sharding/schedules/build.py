"""The checked schedule of a plan's training step or evaluation."""

from sharding.plans.plan import Plan
from sharding.plans.stage_graph import StageEdge, StageGraph, StageId, stage_graph
from sharding.schedules.checks import check_schedule
from sharding.schedules.interleaved_1f1b import interleaved, interleaved_in_flight
from sharding.schedules.ops import OpGraph, Schedule, ScheduleError
from sharding.schedules.registry import find_schedule
from sharding.specs.modules import ModuleGraph


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

    Raises:
        PlanError: There is no such policy.
        ScheduleError: The order that it gives cannot run; the message names the policy and the op at fault.
    """
    policy = find_schedule(plan.schedule)
    op_graph = training_op_graph(plan, graph, trained_stages, shares)
    try:
        schedule, max_in_flight = policy.order(op_graph), policy.max_in_flight(op_graph)
        if not isinstance(schedule, Schedule) or schedule.op_graph is not op_graph:
            raise ScheduleError(f"it returns {type(schedule).__name__}; return a Schedule of the op graph that it gets")
        check_schedule(schedule, max_in_flight)
    except ScheduleError as error:
        raise ScheduleError(f"schedule {plan.schedule!r}: {error}") from error
    return schedule


def build_evaluation_schedule(plan: Plan, graph: ModuleGraph, shares: tuple[StageEdge, ...] = ()) -> Schedule:
    """The checked schedule of an evaluation with as many microbatches as a training step has."""
    schedule = forward_only(stage_graph(plan, graph), plan.microbatches, shares)
    check_schedule(schedule, interleaved_in_flight(schedule.op_graph))
    return schedule


def forward_only(graph: StageGraph, microbatches: int, shares: tuple[StageEdge, ...] = ()) -> Schedule:
    """The order of an evaluation: weights first, then forwards, in the order of interleaved 1F1B."""
    return interleaved(OpGraph(stage_graph=graph, microbatches=microbatches, shares=shares, with_update=False))
