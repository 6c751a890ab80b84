"""Memory of the devices of a plan: as planners count it, and as XLA allocates it for the compiled programs.

Both peaks follow from the simulated step, which says how many microbatches are in flight.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from mmjax.training.dry_run.stage_bytes import StageBytes
from sharding.costs.step_costs import StageCosts, StaticBytes
from sharding.plans.resolved.stage_graph import StageId
from sharding.simulation.timeline import Lane, Timeline

PLANNED_KINDS: Mapping[str, tuple[str, ...]] = {
    "weights": ("weights",),
    "gradients": ("gradients",),
    "optimizer state": ("optimizer",),
    "saved": ("saved",),
    "batch": (),
    "workspace": ("gathered", "workspace", "exchanged", "reserved"),
}
"""Kinds of bytes, and the fields of `Timeline.lane_memory` that planners count them in."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceMemory:
    """Bytes on the fullest device of some stages, at the moment when it holds most.

    Attributes:
        stages: Names of the pipeline ranks that have the device.
        planned: Bytes as planners count them, by kind (`PLANNED_KINDS`).
        planned_full: All bytes as planners count them if every row is full, as the rows of programs always are.
        compiled: Bytes as XLA allocates them, by kind.
        room: Bytes of a device that arrays can take.
    """

    stages: tuple[str, ...]
    planned: Mapping[str, float]
    planned_full: float
    compiled: Mapping[str, float]
    room: float

    @property
    def planned_bytes(self) -> float:
        """All bytes as planners count them."""
        return sum(self.planned.values())

    @property
    def compiled_bytes(self) -> float:
        """All bytes as XLA allocates them."""
        return sum(self.compiled.values())

    @property
    def error(self) -> float:
        """Relative error of what planners count."""
        return self.planned_bytes / self.compiled_bytes - 1

    @property
    def error_full(self) -> float:
        """Relative error of what planners count if every row is full."""
        return self.planned_full / self.compiled_bytes - 1

    @property
    def spare_bytes(self) -> float:
        """Bytes that XLA leaves free; negative where the programs do not fit."""
        return self.room - self.compiled_bytes


def device_memory(
    timeline: Timeline,
    full: Timeline,
    stages: Mapping[StageId, StageBytes],
    capacities: Mapping[StageId, Sequence[int]],
    room: float,
) -> tuple[DeviceMemory, ...]:
    """The memory of the devices of every pipeline rank; ranks that share devices are named together.

    Args:
        timeline: The simulated step.
        full: The same with rows that are full.
        stages: Bytes of every stage.
        capacities: By stage, the number of the capacity with which each microbatch runs.
        room: Bytes of a device that arrays can take.
    """
    assert timeline.costs is not None
    costs = {
        stage: _with_compiled(timeline.costs.stages[stage], of_stage, capacities[stage])
        for stage, of_stage in stages.items()
    }
    compiled = dataclasses.replace(timeline, costs=dataclasses.replace(timeline.costs, stages=costs))
    devices = {stage: frozenset(held.ravel().tolist()) for stage, held in timeline.devices.items()}
    return tuple(
        DeviceMemory(
            stages=names,
            planned=_planned(timeline, lane),
            planned_full=full.lane_peak_memory(lane),
            compiled=_compiled(
                compiled, lane, [of_stage for stage, of_stage in stages.items() if devices[stage] & {*lane.devices}]
            ),
            room=room,
        )
        for names, lane in _places(timeline).items()
    )


def _places(timeline: Timeline) -> dict[tuple[str, ...], Lane]:
    """The fullest of the pipeline ranks on each set of devices, by the names of all of them."""
    by_devices: dict[frozenset[int], list[Lane]] = {}
    for lane in timeline.lanes:
        by_devices.setdefault(frozenset(lane.devices), []).append(lane)
    return {tuple(lane.name for lane in lanes): lanes[0] for lanes in by_devices.values()}


def _with_compiled(costs: StageCosts, held: StageBytes, capacities: Sequence[int]) -> StageCosts:
    """The costs of a stage with the bytes of its compiled programs that it holds from op to op."""

    def by_microbatch(by_capacity: Sequence[int]) -> np.ndarray:
        column = np.array(by_capacity, float)[np.asarray(capacities)]
        return np.repeat(column[:, None], costs.forward.shape[1], axis=1)

    wgrad = costs.wgrad and dataclasses.replace(costs.wgrad, saved_bytes=by_microbatch(held.for_wgrad))
    static = StaticBytes(weights=held.weights, gradients=held.gradients, optimizer=held.optimizer, exchanged=held.batch)
    return dataclasses.replace(
        costs,
        saved_bytes=by_microbatch(held.saved),
        offloaded_bytes=by_microbatch(held.offloaded),
        static=static,
        wgrad=wgrad,
    )


def _planned(timeline: Timeline, lane: Lane) -> dict[str, float]:
    held = timeline.lane_memory(lane)
    return {kind: sum(held[field] for field in fields) for kind, fields in PLANNED_KINDS.items()}


def _compiled(timeline: Timeline, lane: Lane, stages: Sequence[StageBytes]) -> dict[str, float]:
    """Bytes of compiled programs by kind: while microbatches run, or while the programs of a step do."""
    held = timeline.lane_memory(lane)
    kinds = {
        "weights": held["weights"],
        "gradients": held["gradients"],
        "optimizer state": held["optimizer"],
        "saved": held["saved"],
        "batch": held["exchanged"],
        "workspace": float(max(stage.workspace for stage in stages)),
    }
    of_step = float(max(stage.step_workspace for stage in stages))
    if of_step > kinds["saved"] + kinds["workspace"]:
        return kinds | {"saved": 0.0, "workspace": of_step}
    return kinds
