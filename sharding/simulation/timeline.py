"""A step in time, simulated or measured: when every op ran, why devices idled, and what that makes of the cluster."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from sharding.costs.step_costs import StepCosts
from sharding.plans.device_groups import DeviceGroups, group_devices
from sharding.plans.stage_graph import PipelineRank, StageId
from sharding.schedules.ops import OpGraph
from sharding.simulation.idle_time import IDLE_CAUSES, IdlePeriod, idle_by_cause, idle_times
from sharding.simulation.peak_memory import peak_memory
from sharding.simulation.spans import Span

__all__ = ["IDLE_CAUSES", "IdlePeriod", "Lane", "Span", "Timeline"]


@dataclasses.dataclass(frozen=True)
class Lane:
    """A physical stage: a place in a unit, with the virtual stages that lie there.

    Attributes:
        place: (unit, number of the physical stage).
        nodes: Its virtual stages, in chain order.
        devices: Its devices, by instance, then sequence and tensor rank.
        instances: Its data-parallel instances.
    """

    rank: PipelineRank
    stages: tuple[StageId, ...]
    devices: tuple[int, ...]
    replicas: int


@dataclasses.dataclass(frozen=True, eq=False)
class Timeline:
    """Every op's start and end on every instance, and all that follows from them.

    Idle time is by cause (`sharding.simulation.idle_time.CAUSES`); busy time is that of forwards, backwards and updates without the
    wait for collectives of a unit's ranks. Both together are the whole step, on every device. Shares, rates and MFU are
    always per allocated device: all that the plan lists, whether at work or not.

    Attributes:
        work: What the step did.
        devices: Devices of every stage, as [instances, ranks of an instance].
        costs: FLOPs and bytes of the stages.
        spans: In an order that every device followed.
        rendezvous: Whether hops and shares held the devices at both their ends.
    """

    op_graph: OpGraph
    devices: Mapping[StageId, Int[np.ndarray, "_ _"]]
    costs: StepCosts
    spans: tuple[Span, ...]
    rendezvous: bool = False

    def __post_init__(self) -> None:
        if not self.spans:
            raise ValueError("a timeline needs at least one span")

    @functools.cached_property
    def step(self) -> float:
        """Seconds of the step."""
        return max(float(span.end.max()) for span in self.spans)

    @functools.cached_property
    def groups(self) -> DeviceGroups:
        """The devices, those that always work alike as one."""
        return group_devices(self.devices)

    @functools.cached_property
    def lanes(self) -> tuple[Lane, ...]:
        """The physical stages, unit by unit."""
        chunks = self.op_graph.stage_graph.stages_of
        units = list(dict.fromkeys(unit for unit, _ in chunks))
        lanes = []
        for place in sorted(chunks, key=lambda place: (units.index(place[0]), place[1])):
            held = self.devices[chunks[place][0]]
            lanes.append(Lane(place, chunks[place], tuple(map(int, held.ravel())), len(held)))
        return tuple(lanes)

    @functools.cached_property
    def idles(self) -> tuple[IdlePeriod, ...]:
        """All idle time, span by span."""
        return tuple(idle_times(self.op_graph, self.groups, self.spans, self.rendezvous))

    @functools.cached_property
    def idle_by_group(self) -> Mapping[str, Float[np.ndarray, " n"]]:
        """Idle seconds of each group of devices, by cause."""
        return idle_by_cause(self.idles, len(self.groups.sizes))

    @property
    def idle(self) -> dict[str, float]:
        """Idle seconds by cause, the mean over all devices."""
        return {cause: self.groups.mean(seconds) for cause, seconds in self.idle_by_group.items()}

    @functools.cached_property
    def busy(self) -> float:
        """Seconds at work, the mean over all devices."""
        return sum(self.lane_busy(lane) * len(lane.devices) for lane in self.lanes) / self.groups.device_count

    def lane_busy(self, lane: Lane) -> float:
        """Seconds a physical stage is at work for its own unit, the mean over its devices."""
        return sum(float(seconds.mean()) for node in lane.stages for seconds in self._work_of[node])

    @functools.cached_property
    def _work_of(self) -> Mapping[StageId, list[Float[np.ndarray, " i"]]]:
        found: dict[StageId, list[Float[np.ndarray, " i"]]] = {node: [] for node in self.op_graph.stage_graph.stages}
        for span in self.spans:
            if span.op.kind in ("forward", "backward", "update"):
                found[span.op.stage_id].append(span.seconds - span.communication)
        return found

    def lane_idle(self, lane: Lane) -> dict[str, float]:
        """Idle seconds by cause, the mean over a physical stage's devices, whichever unit they then wait for."""
        return {cause: self.groups.stage_mean(lane.stages[0], sec) for cause, sec in self.idle_by_group.items()}

    @functools.cached_property
    def _high_water(self) -> Float[np.ndarray, " n"]:
        return peak_memory(self.op_graph, self.groups, self.costs.stages, self.spans)

    def lane_peak_memory(self, lane: Lane) -> float:
        """The most bytes on any of a physical stage's devices, of all the stages that lie there."""
        return float(self._high_water[self.groups.groups_of[lane.stages[0]]].max())

    @property
    def mfu(self) -> float:
        """Useful FLOPs over what all allocated devices could do in the step."""
        return self.costs.flops / (self.step * self.groups.device_count * self.costs.peak_flops)

    @functools.cached_property
    def mfu_by_unit(self) -> dict[str, float]:
        """A unit's useful FLOPs over what its devices could do in the step; units may share devices."""
        shares = {}
        for unit in dict.fromkeys(lane.rank[0] for lane in self.lanes):
            lanes = [lane for lane in self.lanes if lane.rank[0] == unit]
            flops = sum(float(self.costs.stages[node].flops.sum()) for lane in lanes for node in lane.stages)
            count = len({device for lane in lanes for device in lane.devices})
            shares[unit] = flops / (self.step * count * self.costs.peak_flops)
        return shares

    @property
    def tokens_per_second(self) -> float:
        """Backbone tokens, without padding, of all devices together."""
        return self.costs.tokens / self.step

    def summary(self) -> dict[str, Any]:
        """The figures, for JSON: seconds, shares of the step, bytes; by cause, by unit and by physical stage."""
        return {
            "step_seconds": self.step,
            "devices": self.groups.device_count,
            "microbatches": self.op_graph.microbatches,
            "mfu": self.mfu,
            "tokens_per_second": self.tokens_per_second,
            "busy": {"seconds": self.busy, "share": self.busy / self.step},
            "idle": {cause: {"seconds": s, "share": s / self.step} for cause, s in self.idle.items()},
            "units": [{"unit": unit, "mfu": mfu} for unit, mfu in self.mfu_by_unit.items()],
            "stages": [self._lane_summary(lane) for lane in self.lanes],
        }

    def _lane_summary(self, lane: Lane) -> dict[str, Any]:
        unit, stage = lane.rank
        return {
            "unit": unit,
            "stage": stage,
            "chunks": len(lane.stages),
            "devices": len(lane.devices),
            "instances": lane.replicas,
            "busy_seconds": self.lane_busy(lane),
            "idle_seconds": self.lane_idle(lane),
            "memory_bytes": self.lane_peak_memory(lane),
        }
