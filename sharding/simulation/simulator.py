"""The simulator: every op's start and end on every replica, from a schedule and the costs of a step.

`PlanningProblem.simulate` calls `simulate`; policies and commands simulate plans through that method.
"""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Int

from sharding.costs.step_costs import StepCosts
from sharding.plans.resolved.resolved_plan import ResolvedPlan
from sharding.plans.resolved.stage_graph import StageEdge, StageId
from sharding.recently_used import RecentlyUsed
from sharding.schedules.ops import OpGraph, Schedule, ScheduleError
from sharding.schedules.recurrence.node_builder import schedule_nodes
from sharding.schedules.recurrence.schedule_nodes import ScheduleNodes
from sharding.simulation.op_spans.node_spans import run_schedule
from sharding.simulation.op_spans.op_seconds import seconds_by_costs
from sharding.simulation.timeline import Timeline

RecentNodes = RecentlyUsed[ScheduleNodes]
"""The nodes of the last schedules, for plans that differ only in what their ops take."""


def simulate(
    resolved: ResolvedPlan,
    schedule: Schedule,
    costs: StepCosts,
    rendezvous: bool = False,
    recent: RecentNodes | None = None,
) -> Timeline:
    """The timeline of one step.

    An op starts as soon as it can (`schedule_nodes`); this is exact for the schedule and the costs given. A hop takes
    its seconds from the end of the op that produces its array; the transfer of a tied weight or gradient takes none.
    The seconds of a bundle are given by `bundle_shares`.

    Args:
        resolved: The plan, which says which devices hold which stages.
        schedule: A schedule that `check_schedule` accepts.
        costs: Seconds and bytes.
        rendezvous: Whether a hop occupies the devices of both its ends, as a ppermute program on the compute stream
            does. By default it occupies none (asynchronous sends, DistTrain, arXiv 2408.04275, section 7).
        recent: Gives the nodes of the same ops on the same devices again, and keeps new ones.
    """
    return simulate_on_devices(resolved.devices, schedule, costs, rendezvous, recent)


def simulate_on_devices(
    devices: Mapping[StageId, Int[np.ndarray, "_ _"]],
    schedule: Schedule,
    costs: StepCosts,
    rendezvous: bool = False,
    recent: RecentNodes | None = None,
) -> Timeline:
    """`simulate` on stages whose devices are given as [pipeline replicas * replicas, ranks of a replica]."""
    op_graph = schedule.op_graph
    _check_costs(devices, op_graph, costs)
    nodes = _nodes(devices, schedule, rendezvous, recent or RecentNodes(1))
    return Timeline(op_graph, devices, costs, run_schedule(nodes, seconds_by_costs(costs)), rendezvous)


def _nodes(
    devices: Mapping[StageId, Int[np.ndarray, "_ _"]], schedule: Schedule, rendezvous: bool, recent: RecentNodes
) -> ScheduleNodes:
    """The nodes of a schedule, among the recent ones if all that they depend on is equal."""
    op_graph, graph = schedule.op_graph, schedule.op_graph.stage_graph
    key = (
        *(schedule.ops, schedule.bundled, rendezvous),
        *(op_graph.microbatches, op_graph.backward_stages, op_graph.trained_stages, op_graph.split_stages),
        *(op_graph.tied_stages, op_graph.with_update),
        *(graph.edges, graph.exchanges, graph.compiled),
        *(frozenset(table.items()) for table in (graph.pp, graph.pipeline_replicas)),
        *((stage, of_stage.shape, of_stage.tobytes()) for stage, of_stage in devices.items()),
    )
    return recent.get(key, lambda: schedule_nodes(devices, schedule, rendezvous))


def _check_costs(devices: Mapping[StageId, Int[np.ndarray, "_ _"]], op_graph: OpGraph, costs: StepCosts) -> None:
    """Raises ScheduleError if the costs are not of this op graph on these devices."""
    graph = op_graph.stage_graph
    replicas = {stage: len(devices[stage]) // graph.pipeline_replica_count(stage[0]) for stage in graph.stages}
    for stage in graph.stages:
        _check_shape(f"the costs of stage {stage}", costs.stages, stage, op_graph, replicas[stage])
        if (costs.stages[stage].wgrad is not None) != (stage in op_graph.split_stages):
            raise ScheduleError(
                f"the costs of stage {stage} and the schedule disagree on whether its wgrad is an op of its own; "
                "make both of one plan"
            )
    for source, target in graph.edges:
        _check_shape("StepCosts.hops", costs.hops, (source, target), op_graph, replicas[target])
        if source in op_graph.backward_stages:
            _check_shape("StepCosts.gradient_hops", costs.gradient_hops, (source, target), op_graph, replicas[source])


def _check_shape(name: str, table: Mapping, key: StageId | StageEdge, op_graph: OpGraph, replicas: int) -> None:
    if key not in table:
        raise ScheduleError(f"{name}: there are none for {key}; give [microbatches, replicas]")
    shape = getattr(table[key], "forward", table[key]).shape
    if shape != (op_graph.microbatches, replicas):
        raise ScheduleError(
            f"{name}: {key} has shape {list(shape)}, but the step has {op_graph.microbatches} microbatches "
            f"on {replicas} replicas"
        )
