"""The checked schedule of a plan's training step or evaluation.

The engine and planners build their schedules here.
"""

from sharding.plans.plan import Plan
from sharding.plans.resolved.resolved_plan import ResolvedPlan
from sharding.plans.resolved.stage_graph import PipelineRank, StageEdge, StageGraph, StageId
from sharding.plans.unit_plan import UnitPlan
from sharding.schedules.checks import check_schedule
from sharding.schedules.in_flight import InFlightLimits, check_limits
from sharding.schedules.interleaved_1f1b import interleaved, interleaved_in_flight
from sharding.schedules.named.registry import find_schedule
from sharding.schedules.named.split_stages import split_stages
from sharding.schedules.ops import OpGraph, Schedule, ScheduleError, StageSeconds


def training_op_graph(
    resolved: ResolvedPlan, trained_stages: frozenset[StageId], tied_stages: tuple[StageEdge, ...] = ()
) -> OpGraph:
    """Returns all ops of a training step; takes the arguments of `build_schedule`."""
    plan, stages = resolved.plan, resolved.stages
    return OpGraph(
        stage_graph=stages,
        microbatches=plan.microbatches,
        backward_stages=stages.with_descendants(trained_stages),
        trained_stages=trained_stages,
        split_stages=split_stages(resolved, trained_stages),
        tied_stages=tied_stages,
        seconds={(unit.name, number): seconds for unit in plan.units for number, seconds in enumerate(_seconds(unit))},
    )


def _seconds(unit: UnitPlan) -> list[StageSeconds]:
    """Seconds of the ops of every virtual stage of a unit; empty where its plan does not say."""
    none = (0.0,) * len(unit.schedule_hints.forward_seconds)
    columns = (
        unit.schedule_hints.forward_seconds,
        unit.schedule_hints.backward_seconds,
        unit.schedule_hints.forward_communication or none,
        unit.schedule_hints.backward_communication or none,
    )
    return [StageSeconds(*row) for row in zip(*columns, strict=True)]


def build_schedule(
    resolved: ResolvedPlan, trained_stages: frozenset[StageId], tied_stages: tuple[StageEdge, ...] = ()
) -> Schedule:
    """The checked schedule of a training step.

    A stage runs a backward if it trains, or if a stage that feeds it, directly or through others, does.

    Args:
        resolved: The plan; its `schedule` names the policy.
        trained_stages: Stages with parameters that train; a stage that borrows such a parameter is one.
        tied_stages: Pairs (owner, borrower) of stages with a tied parameter, such as tied embeddings.

    Raises:
        PlanError: There is no such policy.
        ScheduleError: The order that it gives cannot run; the message names the policy and the op at fault.
    """
    plan = resolved.plan
    policy = find_schedule(plan.schedule)
    op_graph = training_op_graph(resolved, trained_stages, tied_stages)
    try:
        max_in_flight = in_flight_limits(plan, op_graph)
        check_limits(op_graph, max_in_flight)
        schedule = policy.order(op_graph, max_in_flight)
        if not isinstance(schedule, Schedule) or schedule.op_graph is not op_graph:
            raise ScheduleError(f"it returns {type(schedule).__name__}; return a Schedule of the op graph that it gets")
        check_schedule(schedule, max_in_flight)
    except ScheduleError as error:
        raise ScheduleError(f"schedule {plan.schedule!r}: {error}") from error
    return schedule


def in_flight_limits(plan: Plan, op_graph: OpGraph) -> InFlightLimits:
    """The limits of a plan's schedule, raised by what the plan allows the units to hold beyond them.

    A compiled unit, and the units that feed it, hold all microbatches: its program starts when all its inputs are
    there.
    """
    extra = {unit.name: unit.schedule_hints.extra_microbatches for unit in plan.units}
    limits = find_schedule(plan.schedule).max_in_flight(op_graph)
    return {rank: limit + extra.get(rank[0], 0) for rank, limit in limits.items()} | _held_for_compiled(op_graph)


def _held_for_compiled(op_graph: OpGraph) -> dict[PipelineRank, int]:
    """All microbatches, of ranks with stages of one program or with stages that feed these."""
    stages_of, waiting = op_graph.stage_graph.stages_of, op_graph.stage_graph.ancestors_of_compiled
    return {
        rank: len(stages) * op_graph.microbatches
        for rank, stages in stages_of.items()
        if not waiting.isdisjoint(stages)
    }


def build_evaluation_schedule(resolved: ResolvedPlan, tied_stages: tuple[StageEdge, ...] = ()) -> Schedule:
    """The checked schedule of an evaluation with as many microbatches as a training step has."""
    schedule = forward_only(resolved.stages, resolved.plan.microbatches, tied_stages)
    check_schedule(schedule, _evaluation_limits(schedule.op_graph))
    return schedule


def forward_only(graph: StageGraph, microbatches: int, tied_stages: tuple[StageEdge, ...] = ()) -> Schedule:
    """The order of an evaluation: weights first, then forwards, in the order of interleaved 1F1B."""
    op_graph = OpGraph(stage_graph=graph, microbatches=microbatches, tied_stages=tied_stages, with_update=False)
    return interleaved(op_graph, _evaluation_limits(op_graph))


def _evaluation_limits(op_graph: OpGraph) -> InFlightLimits:
    return {**interleaved_in_flight(op_graph), **_held_for_compiled(op_graph)}
