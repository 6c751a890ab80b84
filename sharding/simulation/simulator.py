"""The simulator: every op's start and end on every replica, from a schedule and the costs of a step."""

import collections
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float, Int

from sharding.costs.step_costs import StepCosts
from sharding.plans.device_groups import group_devices, latest_of_sources, replica_devices
from sharding.plans.plan import Plan
from sharding.plans.stage_graph import StageEdge, StageId
from sharding.schedules.ops import OpGraph, OpKind, PipelineOp, Schedule, ScheduleError
from sharding.simulation.spans import Span
from sharding.simulation.timeline import Timeline

Seconds = Float[np.ndarray, " i"]
"""One entry for each replica of a stage."""


def simulate(plan: Plan, schedule: Schedule, costs: StepCosts, rendezvous: bool = False) -> Timeline:
    """The timeline of one step.

    An op starts once its devices have run the ops before it in the schedule and its inputs have arrived; this is exact
    for the schedule and the costs given. The replicas of a stage run independently; those of a hop's target wait for
    the source replicas whose rows they take. `gather` and `reduce` join the replicas of a stage, `norm` joins all
    devices. A hop takes its seconds from the end of the op that produces its array; a share takes none.

    Args:
        plan: Which devices hold which stages.
        schedule: A schedule that `check_schedule` accepts.
        costs: Seconds and bytes.
        rendezvous: Whether a hop occupies the devices of both its ends, as a ppermute program on the compute stream
            does. By default it occupies none (asynchronous sends, DistTrain, arXiv 2408.04275, section 7).
    """
    return simulate_on_devices(replica_devices(plan, schedule.op_graph.stage_graph.stages), schedule, costs, rendezvous)


def simulate_on_devices(
    devices: Mapping[StageId, Int[np.ndarray, "_ _"]],
    schedule: Schedule,
    costs: StepCosts,
    rendezvous: bool = False,
) -> Timeline:
    """`simulate` on stages whose devices are given as [replicas, ranks of a replica]."""
    op_graph = schedule.op_graph
    _check_costs(devices, op_graph, costs)
    simulation = _Simulation(devices, op_graph, costs, rendezvous)
    spans = tuple(simulation.run(op) for op in schedule.ops)
    return Timeline(op_graph, devices, costs, spans, rendezvous)


class _Simulation:
    """The state of a simulation: when each group of devices is free, and which inputs have arrived where."""

    def __init__(
        self, devices: Mapping[StageId, Int[np.ndarray, "_ _"]], op_graph: OpGraph, costs: StepCosts, rendezvous: bool
    ) -> None:
        self._graph = op_graph.stage_graph
        self._costs = costs
        self._rendezvous = rendezvous
        groups = group_devices(devices)
        self._groups_of = groups.groups_of
        self._free = np.zeros(len(groups.sizes))
        self._ends: dict[tuple[OpKind, StageId, int], Seconds] = {}
        # For a forward or backward to come: how many inputs have arrived, and when the last of them did.
        self._arrived: dict[tuple[OpKind, StageId, int], tuple[int, Seconds]] = {}
        self._borrowed_weights: dict[StageId, float] = collections.defaultdict(float)

    def run(self, op: PipelineOp) -> Span:
        """Runs the next op of the schedule."""
        start, end, communication = _RUN[op.kind](self, op)
        return Span(op, start, end, communication)

    def compute(self, op: PipelineOp) -> tuple[Seconds, Seconds, Seconds]:
        """Runs a forward or a backward."""
        stage, number, is_forward = op.stage_id, op.microbatch, op.kind == "forward"
        costs = self._costs.stages[stage]
        inputs = self._graph.sources[stage] if is_forward else self._graph.targets[stage]
        groups = self._groups_of[stage]
        start = self._free[groups].max(axis=1)
        if inputs:
            count, ready = self._arrived.pop((op.kind, stage, number), (0, start))
            if count < len(inputs):
                raise ScheduleError(
                    f"{op} is scheduled before what it needs; only {count} of {len(inputs)} inputs came"
                )
            start = np.maximum(start, ready)
        if is_forward and stage in self._borrowed_weights:
            start = np.maximum(start, self._borrowed_weights[stage])
        end = start + (costs.forward if is_forward else costs.backward)[number]
        self._free[groups] = end[:, None]
        self._ends[op.kind, stage, number] = end
        return start, end, (costs.forward_communication if is_forward else costs.backward_communication)[number]

    def hop(self, op: PipelineOp) -> tuple[Seconds, Seconds, Seconds]:
        """Sends an activation, or a gradient back."""
        is_forward = op.kind == "hop"
        kind: OpKind = "forward" if is_forward else "backward"
        edge: StageEdge = (op.stage_id, op.target_id) if is_forward else (op.target_id, op.stage_id)
        seconds = (self._costs.hops if is_forward else self._costs.hops_back)[edge][op.microbatch]
        produced = self._ends.get((kind, op.stage_id, op.microbatch))
        if produced is None:
            raise ScheduleError(f"{op} is scheduled before the {kind} it follows")
        start = latest_of_sources(produced, len(seconds))
        if self._rendezvous:
            start = np.maximum(start, self._both_ends_free(op))
        end = start + seconds
        if self._rendezvous:
            self._occupy_both_ends(op, end)
        key = (kind, op.target_id, op.microbatch)
        count, ready = self._arrived.get(key, (0, end))
        self._arrived[key] = (count + 1, np.maximum(ready, end))
        return start, end, np.zeros_like(end)

    def _both_ends_free(self, op: PipelineOp) -> Seconds:
        """When both ends of a hop are free, for every replica of its target."""
        source = self._free[self._groups_of[op.stage_id]].max(axis=1)
        target = self._free[self._groups_of[op.target_id]].max(axis=1)
        return np.maximum(target, latest_of_sources(source, len(target)))

    def _occupy_both_ends(self, op: PipelineOp, end: Seconds) -> None:
        source, target = self._groups_of[op.stage_id], self._groups_of[op.target_id]
        np.maximum.at(self._free, target, end[:, None])
        np.maximum.at(self._free, source, latest_of_sources(end, len(source))[:, None])

    def share(self, op: PipelineOp) -> tuple[Seconds, Seconds, Seconds]:
        """Sends a tied weight or its gradient from all replicas of a stage to all of another, in no time."""
        ready_after: OpKind = "gather" if op.kind == "share" else "reduce"
        ends = (op.stage_id, op.target_id)
        moment = max(float(self._ends[ready_after, stage, -1].max()) for stage in ends)
        if self._rendezvous:
            moment = max(float(self._free[self._groups_of[stage]].max()) for stage in ends)
            self._free[self._groups_of[op.stage_id]] = self._free[self._groups_of[op.target_id]] = moment
        if op.kind == "share":
            self._borrowed_weights[op.target_id] = max(self._borrowed_weights[op.target_id], moment)
        return _same_for_all(moment, moment, len(self._groups_of[op.target_id]))

    def collective(self, op: PipelineOp) -> tuple[Seconds, Seconds, Seconds]:
        """Runs a gather or a reduction, which joins the replicas of a stage."""
        groups, costs = self._groups_of[op.stage_id], self._costs.stages[op.stage_id]
        start = float(self._free[groups].max())
        end = start + (costs.gather if op.kind == "gather" else costs.reduce)
        self._free[groups] = end
        times = _same_for_all(start, end, len(groups))
        self._ends[op.kind, op.stage_id, -1] = times[1]
        return times

    def update(self, op: PipelineOp) -> tuple[Seconds, Seconds, Seconds]:
        """Runs the optimizer of a stage."""
        groups = self._groups_of[op.stage_id]
        start = self._free[groups].max(axis=1)
        end = start + self._costs.stages[op.stage_id].update
        self._free[groups] = end[:, None]
        return start, end, np.zeros_like(end)

    def norm(self, op: PipelineOp) -> tuple[Seconds, Seconds, Seconds]:
        """Runs the norm of the gradients, which joins all devices."""
        start = float(self._free.max())
        end = start + self._costs.norm
        self._free[:] = end
        return _same_for_all(start, end, 1)


_RUN = {
    "forward": _Simulation.compute,
    "backward": _Simulation.compute,
    "hop": _Simulation.hop,
    "hop_back": _Simulation.hop,
    "share": _Simulation.share,
    "share_back": _Simulation.share,
    "gather": _Simulation.collective,
    "reduce": _Simulation.collective,
    "update": _Simulation.update,
    "norm": _Simulation.norm,
}


def _same_for_all(start: float, end: float, replicas: int) -> tuple[Seconds, Seconds, Seconds]:
    return np.full(replicas, start), np.full(replicas, end), np.zeros(replicas)


def _check_costs(devices: Mapping[StageId, Int[np.ndarray, "_ _"]], op_graph: OpGraph, costs: StepCosts) -> None:
    """Raises ScheduleError if the costs are not those of this op graph on these devices."""
    for stage in op_graph.stage_graph.stages:
        _check_shape(f"the costs of stage {stage}", costs.stages, stage, op_graph, len(devices[stage]))
    for source, target in op_graph.stage_graph.edges:
        _check_shape("StepCosts.hops", costs.hops, (source, target), op_graph, len(devices[target]))
        if source in op_graph.backward_stages:
            _check_shape("StepCosts.hops_back", costs.hops_back, (source, target), op_graph, len(devices[source]))


def _check_shape(name: str, table: Mapping, key: StageId | StageEdge, op_graph: OpGraph, replicas: int) -> None:
    if key not in table:
        raise ScheduleError(f"{name}: there are none for {key}; give [microbatches, replicas]")
    shape = getattr(table[key], "forward", table[key]).shape
    if shape != (op_graph.microbatches, replicas):
        raise ScheduleError(
            f"{name}: {key} has shape {list(shape)}, but the step has {op_graph.microbatches} microbatches "
            f"on {replicas} replicas"
        )
