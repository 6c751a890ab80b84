"""What a schedule takes: every op's start and end on every instance, from the costs of a step."""

import collections
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float, Int

from sharding.costs.step_costs import StepCosts
from sharding.plans.device_groups import group_devices, latest_of_sources, replica_devices
from sharding.plans.plan import Plan
from sharding.plans.stage_graph import StageEdge, StageId
from sharding.schedules.ops import OpGraph, PipelineOp, Schedule, ScheduleError
from sharding.simulation.spans import Span
from sharding.simulation.timeline import Timeline


def simulate(plan: Plan, schedule: Schedule, costs: StepCosts, rendezvous: bool = False) -> Timeline:
    """The timeline of one step.

    An op starts once the devices it holds have done what stands before it in the schedule, and what it needs is there:
    exact for the schedule and the costs given. A stage's instances run apart from each other; those of a hop's target
    wait for the source's instances whose rows they take. `gather` and `reduce` join the instances of a stage, `norm`
    joins all devices. A hop takes its seconds from the end of its producer, and a share takes none.

    Args:
        plan: Where the stages lie.
        schedule: An order that `check_schedule` accepts.
        costs: Seconds and bytes.
        rendezvous: Whether a hop holds the devices at both its ends, as a ppermute program on the compute stream does.
            By default it holds none (asynchronous sends, DistTrain, arXiv 2408.04275, section 7).
    """
    return simulate_on_devices(replica_devices(plan, schedule.op_graph.stage_graph.stages), schedule, costs, rendezvous)


def simulate_on_devices(
    devices: Mapping[StageId, Int[np.ndarray, "_ _"]],
    schedule: Schedule,
    costs: StepCosts,
    rendezvous: bool = False,
) -> Timeline:
    """`simulate` on stages whose devices are given as [instances, tensor ranks]."""
    op_graph = schedule.op_graph
    _check_costs(devices, op_graph, costs)
    run = _Run(devices, op_graph, costs, rendezvous)
    for op in schedule.ops:
        run.add(op)
    return Timeline(op_graph, devices, costs, tuple(run.spans), rendezvous)


class _Run:
    """A simulation under way: when each group of devices is free, and what has arrived where."""

    def __init__(
        self, devices: Mapping[StageId, Int[np.ndarray, "_ _"]], work: OpGraph, costs: StepCosts, rendezvous: bool
    ) -> None:
        self.spans: list[Span] = []
        self._graph = work.stage_graph
        self._costs = costs
        self._rendezvous = rendezvous
        groups = group_devices(devices)
        self._rows = groups.groups_of
        self._free = np.zeros(len(groups.sizes))
        self._ends: dict[tuple[str, StageId, int], Float[np.ndarray, " i"]] = {}
        # What waits for a stage's next op of a kind: how many inputs have come, and when the last of them did.
        self._arrived: dict[tuple[str, StageId, int], tuple[int, Float[np.ndarray, " i"]]] = {}
        self._weights: dict[StageId, float] = collections.defaultdict(float)

    def add(self, part: PipelineOp) -> None:
        """Runs the next op of the schedule."""
        start, end, tensor = _STEPS[part.kind](self, part)
        self.spans.append(Span(part, start, end, tensor))

    def compute(self, part: PipelineOp) -> tuple[Float[np.ndarray, " i"], ...]:
        kind, node, number = part.kind, part.stage_id, part.microbatch
        stage = self._costs.stages[node]
        forward = kind == "forward"
        inputs = self._graph.sources[node] if forward else self._graph.targets[node]
        rows = self._rows[node]
        start = self._free[rows].max(axis=1)
        if inputs:
            count, ready = self._arrived.pop((kind, node, number), (0, start))
            if count < len(inputs):
                raise ScheduleError(f"{part} stands before what it needs; only {count} of {len(inputs)} inputs came")
            start = np.maximum(start, ready)
        if forward and node in self._weights:
            start = np.maximum(start, self._weights[node])
        end = start + (stage.forward if forward else stage.backward)[number]
        self._free[rows] = end[:, None]
        self._ends[kind, node, number] = end
        return start, end, (stage.forward_communication if forward else stage.backward_communication)[number]

    def hop(self, part: PipelineOp) -> tuple[Float[np.ndarray, " i"], ...]:
        forward = part.kind == "hop"
        kind = "forward" if forward else "backward"
        edge: StageEdge = (part.stage_id, part.target_id) if forward else (part.target_id, part.stage_id)
        seconds = (self._costs.hops if forward else self._costs.hops_back)[edge][part.microbatch]
        produced = self._ends.get((kind, part.stage_id, part.microbatch))
        if produced is None:
            raise ScheduleError(f"{part} stands before the {kind} it follows")
        start = latest_of_sources(produced, len(seconds))
        if self._rendezvous:
            start = np.maximum(start, self._meet(part))
        end = start + seconds
        if self._rendezvous:
            self._hold(part, end)
        key = (kind, part.target_id, part.microbatch)
        count, ready = self._arrived.get(key, (0, end))
        self._arrived[key] = (count + 1, np.maximum(ready, end))
        return start, end, np.zeros_like(end)

    def _meet(self, part: PipelineOp) -> Float[np.ndarray, " i"]:
        """When both ends of a hop are free, for every instance of its target."""
        here = self._free[self._rows[part.stage_id]].max(axis=1)
        there = self._free[self._rows[part.target_id]].max(axis=1)
        return np.maximum(there, latest_of_sources(here, len(there)))

    def _hold(self, part: PipelineOp, end: Float[np.ndarray, " i"]) -> None:
        here, there = self._rows[part.stage_id], self._rows[part.target_id]
        np.maximum.at(self._free, there, end[:, None])
        np.maximum.at(self._free, here, latest_of_sources(end, len(here))[:, None])

    def share(self, part: PipelineOp) -> tuple[Float[np.ndarray, " i"], ...]:
        """A parameter goes from all instances of a stage to all of another, in no time."""
        kind = "gather" if part.kind == "share" else "reduce"
        moment = max(float(self._ends[kind, node, -1].max()) for node in (part.stage_id, part.target_id))
        if self._rendezvous:
            moment = max(float(self._free[self._rows[node]].max()) for node in (part.stage_id, part.target_id))
            self._free[self._rows[part.stage_id]] = self._free[self._rows[part.target_id]] = moment
        if part.kind == "share":
            self._weights[part.target_id] = max(self._weights[part.target_id], moment)
        return _all_at(moment, moment, len(self._rows[part.target_id]))

    def collective(self, part: PipelineOp) -> tuple[Float[np.ndarray, " i"], ...]:
        """Joins the instances of a stage."""
        rows = self._rows[part.stage_id]
        start = float(self._free[rows].max())
        end = start + getattr(self._costs.stages[part.stage_id], part.kind)
        self._free[rows] = end
        spans = _all_at(start, end, len(rows))
        self._ends[part.kind, part.stage_id, -1] = spans[1]
        return spans

    def update(self, part: PipelineOp) -> tuple[Float[np.ndarray, " i"], ...]:
        rows = self._rows[part.stage_id]
        start = self._free[rows].max(axis=1)
        end = start + self._costs.stages[part.stage_id].update
        self._free[rows] = end[:, None]
        return start, end, np.zeros_like(end)

    def norm(self, part: PipelineOp) -> tuple[Float[np.ndarray, " i"], ...]:
        start = float(self._free.max())
        end = start + self._costs.norm
        self._free[:] = end
        return _all_at(start, end, 1)


_STEPS = {
    "forward": _Run.compute,
    "backward": _Run.compute,
    "hop": _Run.hop,
    "hop_back": _Run.hop,
    "share": _Run.share,
    "share_back": _Run.share,
    "gather": _Run.collective,
    "reduce": _Run.collective,
    "update": _Run.update,
    "norm": _Run.norm,
}


def _all_at(start: float, end: float, instances: int) -> tuple[Float[np.ndarray, " i"], ...]:
    return np.full(instances, start), np.full(instances, end), np.zeros(instances)


def _check_costs(devices: Mapping[StageId, Int[np.ndarray, "_ _"]], work: OpGraph, costs: StepCosts) -> None:
    """Raises ScheduleError if the costs are not of this work on these devices."""
    for node in work.stage_graph.stages:
        _check_shape(f"the costs of stage {node}", costs.stages, node, work, devices[node])
    for source, target in work.stage_graph.edges:
        _check_shape("StepCosts.hops", costs.hops, (source, target), work, devices[target])
        if source in work.backward_stages:
            _check_shape("StepCosts.hops_back", costs.hops_back, (source, target), work, devices[source])


def _check_shape(
    name: str, table: Mapping, key: StageId | StageEdge, work: OpGraph, held: Int[np.ndarray, "_ _"]
) -> None:
    if key not in table:
        raise ScheduleError(f"{name}: there are none for {key}; give [microbatches, instances]")
    found = getattr(table[key], "forward", table[key]).shape
    if found != (work.microbatches, len(held)):
        raise ScheduleError(
            f"{name}: {key} has shape {list(found)}, but the step has {work.microbatches} microbatches "
            f"on {len(held)} instances"
        )
