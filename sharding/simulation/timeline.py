"""A step in time, simulated or measured: when every op ran, why devices idled, and how well the cluster was used."""

import collections
import dataclasses
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Float, Int, Shaped

from configs.common.errors import UserError
from sharding.costs.published_errors import Family, StepRange, step_range
from sharding.costs.step_costs import StaticBytes, StepCosts
from sharding.frames import make_frame
from sharding.plans.plan_purpose import PlanPurpose
from sharding.plans.resolved.device_groups import DeviceGroups, group_devices
from sharding.plans.resolved.stage_graph import PipelineRank, StageId
from sharding.schedules.ops import COMPUTE_KINDS, OpGraph, PipelineOp
from sharding.simulation.idle.filled_idle import FilledIdle, filled_idle, units_on_shared_devices
from sharding.simulation.idle.idle_time import IdleCause, IdlePeriod, idle_by_cause, idle_times
from sharding.simulation.idle.scheduling_efficiency import scheduling_efficiency
from sharding.simulation.op_spans.spans import Span
from sharding.simulation.peak_memory import peak_host_memory, peak_memory, static_memory

if TYPE_CHECKING:
    import pandas


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lane:
    """One row of a timeline: a pipeline rank, with its stages.

    Attributes:
        rank: The pipeline rank (unit, number).
        pipeline_replica: Which pipeline replica of its unit it belongs to.
        pipeline_replicas: Number of pipeline replicas of the unit.
        stages: Its stages in chain order; more than one where its unit has chunks.
        devices: Its devices, by replica, then by context-parallel and tensor rank.
        replicas: Number of its data-parallel replicas.
    """

    rank: PipelineRank
    pipeline_replica: int
    pipeline_replicas: int
    stages: tuple[StageId, ...]
    devices: tuple[int, ...]
    replicas: int

    @property
    def stage(self) -> int:
        """Number of its first stage, which tells it from the other ranks of its pipeline replica."""
        return self.stages[0][1]

    @property
    def name(self) -> str:
        """Its unit and stage, and its pipeline replica if there are several."""
        return f"{self.rank[0]} {self.stage}" + (
            f", pipeline replica {self.pipeline_replica}" if self.pipeline_replicas > 1 else ""
        )


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Timeline:
    """Every op's start and end on every replica, and all that follows from them.

    Idle time is reported by cause (`idle_time.IDLE_CAUSES`). Busy time is spent in forwards, backwards, wgrads and
    updates, without the wait for other ranks of a unit. Both together are the whole step on every device. Shares, rates
    and MFU are always per allocated device: all that the plan lists, busy or not.

    Attributes:
        op_graph: The ops of the step.
        devices: Devices of every stage, as [pipeline replicas * replicas, ranks of a replica].
        costs: FLOPs and bytes of the stages; None if the step was measured. MFU, tokens per second and peak memory then
            raise UserError.
        spans: When each op ran, in an order that every device followed.
        rendezvous: Whether hops and transfers of tied parameters occupied the devices of both their ends.
        purpose: The model, rows and cluster of which it is a step; None where they are not known.
        device_memory: Bytes of a device that arrays can take; None where they are not known.
        error_families: Families of published runs whose errors its step may have; none where no run is comparable.
    """

    op_graph: OpGraph
    devices: Mapping[StageId, Int[np.ndarray, "_ _"]]
    costs: StepCosts | None
    spans: tuple[Span, ...]
    rendezvous: bool = False
    purpose: PlanPurpose | None = None
    device_memory: float | None = None
    error_families: tuple[Family, ...] = ()

    def __post_init__(self) -> None:
        if not self.spans:
            raise ValueError("a timeline needs at least one span")

    @property
    def kind(self) -> Literal["simulated", "measured"]:
        """Whether the step was simulated or measured; whatever shows its figures says so beside them."""
        return "measured" if self.costs is None else "simulated"

    @property
    def step_range(self) -> StepRange | None:
        """The seconds between which the step is expected to lie, by published runs; None where none is comparable."""
        return step_range(self.step, self.error_families) if self.error_families else None

    @functools.cached_property
    def step(self) -> float:
        """Seconds of the step."""
        return float(np.concatenate([span.end for span in self.spans]).max())

    @functools.cached_property
    def groups(self) -> DeviceGroups:
        """The devices, with devices that always work alike as one group."""
        return group_devices(self.devices)

    @functools.cached_property
    def lanes(self) -> tuple[Lane, ...]:
        """The pipeline ranks, unit by unit and pipeline replica by pipeline replica."""
        graph = self.op_graph.stage_graph
        units = list(dict.fromkeys(unit for unit, _ in graph.stages))
        lanes = []
        for rank in sorted(graph.stages_of, key=lambda rank: (units.index(rank[0]), rank[1])):
            stages = graph.stages_of[rank]
            pipeline_replica = graph.ranks_of[stages[0]].index(rank)
            devices = self._of_copy(stages[0], pipeline_replica, self.devices[stages[0]])
            lanes.append(
                Lane(
                    rank=rank,
                    pipeline_replica=pipeline_replica,
                    pipeline_replicas=graph.pipeline_replica_count(rank[0]),
                    stages=stages,
                    devices=tuple(map(int, devices.ravel())),
                    replicas=len(devices),
                )
            )
        return tuple(lanes)

    def _of_copy(
        self, stage: StageId, pipeline_replica: int, table: Shaped[np.ndarray, "r ..."]
    ) -> Shaped[np.ndarray, "i ..."]:
        """Returns the rows of one pipeline replica from a table of all replicas of a stage."""
        count = len(table) // self.op_graph.stage_graph.pipeline_replica_count(stage[0])
        return table[pipeline_replica * count : (pipeline_replica + 1) * count]

    def _groups_on(self, lane: Lane, groups: DeviceGroups) -> Int[np.ndarray, " k"]:
        """The groups of a lane's devices, each once."""
        stage = lane.stages[0]
        is_first = self._of_copy(stage, lane.pipeline_replica, groups.is_first[stage])
        return self._of_copy(stage, lane.pipeline_replica, groups.groups_of[stage])[is_first]

    @functools.cached_property
    def lanes_of_units(self) -> Mapping[str, tuple[Lane, ...]]:
        """The lanes of each unit."""
        units = dict.fromkeys(lane.rank[0] for lane in self.lanes)
        return {unit: tuple(lane for lane in self.lanes if lane.rank[0] == unit) for unit in units}

    @functools.cached_property
    def idle_periods(self) -> tuple[IdlePeriod, ...]:
        """All idle time, span by span."""
        return tuple(idle_times(self.groups, self.op_graph.stage_graph, self.spans, self.rendezvous, self.step))

    @functools.cached_property
    def idle_by_group(self) -> Mapping[IdleCause, Float[np.ndarray, " n"]]:
        """Idle seconds of each group of devices, by cause."""
        return idle_by_cause(self.idle_periods, len(self.groups.sizes))

    @functools.cached_property
    def idle(self) -> dict[IdleCause, float]:
        """Idle seconds by cause, the mean over all devices."""
        return {cause: self.groups.mean(seconds) for cause, seconds in self.idle_by_group.items()}

    @functools.cached_property
    def busy(self) -> float:
        """Busy seconds, the mean over all devices."""
        return sum(self.lane_busy(lane) * len(lane.devices) for lane in self.lanes) / self.groups.device_count

    def lane_busy(self, lane: Lane) -> float:
        """Seconds in which a lane works for its own unit, the mean over its devices."""
        return sum(seconds for stage in lane.stages for seconds in self._busy_seconds[stage, lane.pipeline_replica])

    @functools.cached_property
    def _busy_seconds(self) -> Mapping[tuple[StageId, int], list[float]]:
        """By stage and pipeline replica, the mean seconds of each op that keeps its devices busy."""
        graph, busy = self.op_graph.stage_graph, collections.defaultdict(list)
        for span in self.spans:
            stage, seconds = span.op.stage_id, span.compute_seconds
            if span.op.kind in COMPUTE_KINDS:
                busy[stage, graph.pipeline_replica_of_microbatch(stage[0], span.op.microbatch)].append(
                    float(seconds.mean())
                )
            elif span.op.kind == "update":
                for pipeline_replica in range(graph.pipeline_replica_count(stage[0])):
                    busy[stage, pipeline_replica].append(float(self._of_copy(stage, pipeline_replica, seconds).mean()))
        return busy

    def lane_idle(self, lane: Lane) -> dict[IdleCause, float]:
        """Idle seconds by cause, the mean over a lane's devices, whichever unit they then wait for."""
        groups = self._groups_on(lane, self.groups)
        return {cause: self.groups.mean_over(groups, seconds) for cause, seconds in self.idle_by_group.items()}

    def _known_costs(self) -> StepCosts:
        if self.costs is None:
            raise UserError("a measured timeline knows no FLOPs and bytes; simulate the step for its MFU and memory")
        return self.costs

    @functools.cached_property
    def _memory_groups(self) -> DeviceGroups:
        """The devices, with devices that hold the same bytes of every stage as one group."""
        parts = {stage: costs.parts for stage, costs in self._known_costs().stages.items()}
        if max(parts.values()) == 1:
            return self.groups
        return group_devices(
            {stage: held.reshape(len(held) * parts[stage], -1) for stage, held in self.devices.items()}
        )

    @functools.cached_property
    def _peak_memory(self) -> Float[np.ndarray, " n"]:
        return peak_memory(self.op_graph, self._memory_groups, self._known_costs().stages, self.spans)

    def lane_peak_memory(self, lane: Lane) -> float:
        """Peak bytes on any of a lane's devices, over all the stages that they hold."""
        return float(self._peak_memory[self._groups_on(lane, self._memory_groups)].max())

    def lane_memory(self, lane: Lane) -> dict[str, float]:
        """The bytes of `lane_peak_memory` by kind: of `StaticBytes`, and what microbatches save."""
        groups = self._groups_on(lane, self._memory_groups)
        fullest = groups[self._peak_memory[groups].argmax()]
        static = static_memory(self._memory_groups, self._known_costs().stages)[fullest]
        kinds = dict(zip(StaticBytes._fields, static.tolist(), strict=True))
        return kinds | {"saved": float(self._peak_memory[fullest] - static.sum())}

    @functools.cached_property
    def _peak_host_memory(self) -> Float[np.ndarray, " n"]:
        return peak_host_memory(self.op_graph, self._memory_groups, self._known_costs().stages, self.spans)

    def lane_peak_host_memory(self, lane: Lane) -> float:
        """Peak bytes of optimizer state and offloaded activations in the host memory of any of a lane's devices."""
        return float(self._peak_host_memory[self._groups_on(lane, self._memory_groups)].max())

    @property
    def mfu(self) -> float:
        """Model FLOPs utilisation: useful FLOPs over what all allocated devices could compute in the step.

        Of causal attention, the half of the squares that is not masked counts.
        """
        return self._utilization(self._known_costs().flops)

    @property
    def mfu_whole_squares(self) -> float:
        """`mfu` if the squares of causal attention count whole, as in arXiv 2104.04473, section 5.1."""
        costs = self._known_costs()
        return self._utilization(costs.flops + costs.masked_flops)

    @property
    def hfu(self) -> float:
        """Hardware FLOPs utilisation (arXiv 2205.05198, section 6.3): `mfu` if recomputed forwards count too."""
        costs = self._known_costs()
        return self._utilization(costs.flops + costs.recomputed.flops)

    @property
    def hfu_whole_squares(self) -> float:
        """`hfu` if the squares of causal attention count whole: 8 FLOPs a parameter and token, recomputed in full."""
        costs = self._known_costs()
        return self._utilization(costs.flops + costs.masked_flops + sum(costs.recomputed))

    def _utilization(self, flops: float) -> float:
        """FLOPs over what all allocated devices could compute in the step."""
        return flops / (self.step * self.groups.device_count * self._known_costs().peak_flops)

    @functools.cached_property
    def mfu_by_unit(self) -> dict[str, float]:
        """A unit's useful FLOPs over what its devices could compute in the step; units may share devices."""
        costs, shares = self._known_costs(), {}
        for unit, lanes in self.lanes_of_units.items():
            stages = (stage for stage in costs.stages if stage[0] == unit)
            flops = sum(float(costs.stages[stage].flops.sum()) for stage in stages)
            count = len({device for lane in lanes for device in lane.devices})
            shares[unit] = flops / (self.step * count * costs.peak_flops)
        return shares

    @functools.cached_property
    def busy_by_unit(self) -> dict[str, float]:
        """Busy seconds of each unit, the mean over its devices; units may share devices."""
        busy = {}
        for unit, lanes in self.lanes_of_units.items():
            count = len({device for lane in lanes for device in lane.devices})
            busy[unit] = sum(self.lane_busy(lane) * len(lane.devices) for lane in lanes) / count
        return busy

    @functools.cached_property
    def filled_idle(self) -> tuple[FilledIdle, ...]:
        """Idle time of every unit that computes most on devices which it shares, and how much of it others fill."""
        graph, units_idle = self.op_graph.stage_graph, []
        busy = {
            unit: sum(self.lane_busy(lane) * len(lane.devices) for lane in lanes)
            for unit, lanes in self.lanes_of_units.items()
        }
        for unit, others in units_on_shared_devices(graph, busy).items():
            idle, filled = filled_idle(self.groups, graph, self.spans, unit, others)
            efficiency = None
            if self.costs is not None:
                efficiency = scheduling_efficiency(
                    self.devices, self.op_graph, self.spans, self.costs, self.groups, unit, others, self.rendezvous
                )
            units_idle.append(FilledIdle(unit, others, idle, filled, efficiency))
        return tuple(units_idle)

    @property
    def tokens_per_second(self) -> float:
        """Backbone tokens per second without padding, on all devices together."""
        return self._known_costs().tokens / self.step

    def __repr__(self) -> str:
        return f"Timeline({self.step:.6g} s, {len(self.spans)} ops on {len(self.lanes)} pipeline ranks)"

    def to_frame(self) -> "pandas.DataFrame":
        """A frame with a row for every op on every replica: what ran where, and when in seconds.

        A transfer has the unit and stage that receive in `target_unit` and `target_stage`; its replicas are the
        target's. Replicas are numbered within the pipeline replica that takes a microbatch; ops that run once per step
        have the replicas of all pipeline replicas. `beside` are the seconds between `start` and `end` that belong to
        the other op of a bundle. Raises UserError without pandas.
        """
        spans, replicas = self.spans, [len(span.start) for span in self.spans]
        columns: dict[str, Any] = {
            name: np.repeat([getattr(span.op, name) for span in spans], replicas) for name in PipelineOp._fields
        }
        columns["replica"] = np.concatenate([np.arange(count) for count in replicas])
        for name in ("start", "end", "communication"):
            columns[name] = np.concatenate([getattr(span, name) for span in spans])
        columns["beside"] = np.concatenate([span.seconds - span.own_seconds for span in spans])
        return make_frame(columns)
