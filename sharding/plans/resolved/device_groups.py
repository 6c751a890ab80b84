"""Devices by stage and replica, with devices that always work alike as one group; and which replicas feed which.

The recurrence of a schedule and timelines compute on these groups.
"""

import dataclasses
import functools
from collections.abc import Iterable, Mapping

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from sharding.plans.device_numbers import device_array
from sharding.plans.plan import Plan
from sharding.plans.resolved.stage_graph import PipelineReplicas, StageId
from sharding.plans.unit_plan import UnitPlan


@dataclasses.dataclass(frozen=True, eq=False)
class DeviceGroups:
    """Groups of devices that belong to the same replica of every stage; thousands of devices make hundreds of groups.

    Attributes:
        groups_of: By stage, the groups of each replica, [replicas, groups]; of all pipeline replicas of its unit. A
            replica with fewer groups than another repeats its first.
        is_first: By stage, whether an entry of `groups_of` is no repetition.
        sizes: Number of devices of each group.
        members: For every device in ascending order, (device, group).
    """

    groups_of: Mapping[StageId, Int[np.ndarray, "_ _"]]
    is_first: Mapping[StageId, Bool[np.ndarray, "_ _"]]
    sizes: Int[np.ndarray, " n"]
    members: Int[np.ndarray, "_ _"]

    @property
    def device_count(self) -> int:
        """Number of distinct devices."""
        return len(self.members)

    def mean(self, seconds: Float[np.ndarray, " n"]) -> float:
        """The mean over all devices of a figure of each group."""
        return float((seconds * self.sizes).sum() / self.device_count)

    def mean_over(self, groups: Int[np.ndarray, " k"], seconds: Float[np.ndarray, " n"]) -> float:
        """The mean over the devices of some groups of a figure of each group."""
        return float((seconds[groups] * self.sizes[groups]).sum() / self.sizes[groups].sum())


def group_devices(devices: Mapping[StageId, Int[np.ndarray, "_ _"]]) -> DeviceGroups:
    """Groups the devices of stages, given as [replicas, ranks of a replica] each."""
    flat = np.concatenate([stage_devices.ravel() for stage_devices in devices.values()])
    numbers, flat_positions = np.unique(flat, return_inverse=True)
    ends = np.cumsum([stage_devices.size for stage_devices in devices.values()])
    positions = {
        stage: part.reshape(stage_devices.shape)
        for (stage, stage_devices), part in zip(
            devices.items(), np.split(flat_positions.ravel(), ends[:-1]), strict=True
        )
    }
    # The chunks of a rank are on the same devices, so that few rows of the membership table differ.
    distinct = {(table.tobytes(), table.shape): table for table in positions.values()}
    group_of = np.zeros(len(numbers), int)  # devices that are in no table so far are one group
    for table in distinct.values():
        # A replica's devices leave the groups that they were in for new ones.
        keys = group_of[table] * len(table) + np.arange(len(table))[:, None]
        _, key_numbers = np.unique(keys, return_inverse=True)
        group_of[table] = group_of.max() + 1 + key_numbers.reshape(table.shape)
    _, group_of = np.unique(group_of, return_inverse=True)
    unique_groups = {stage: _without_repetitions(group_of[table]) for stage, table in positions.items()}
    return DeviceGroups(
        {stage: groups for stage, (groups, _) in unique_groups.items()},
        {stage: is_first for stage, (_, is_first) in unique_groups.items()},
        np.bincount(group_of),
        np.stack([numbers, group_of], axis=1),
    )


def _without_repetitions(groups: Int[np.ndarray, "_ _"]) -> tuple[Int[np.ndarray, "i g"], Bool[np.ndarray, "i g"]]:
    """Each replica's groups once, and which entries are no repetition added to fill the row."""
    ordered = np.sort(groups, axis=1)
    is_new = np.ones(ordered.shape, bool)
    is_new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    columns = np.argsort(~is_new, axis=1, kind="stable")[:, : is_new.sum(axis=1).max()]
    is_first = np.take_along_axis(is_new, columns, axis=1)
    return np.where(is_first, np.take_along_axis(ordered, columns, axis=1), ordered[:, :1]), is_first


def replica_devices(plan: Plan, stages: Iterable[StageId]) -> dict[StageId, Int[np.ndarray, "_ _"]]:
    """The devices of every stage as [pipeline replicas * replicas, ranks of a replica].

    Replicas are the groups of devices that all modules of a stage share.
    """
    units = {unit.name: unit for unit in plan.units}

    def devices(unit: UnitPlan, stage: int) -> Int[np.ndarray, "_ _"]:
        if unit.is_compiled:  # the replicas of every pipeline rank, next to each other
            by_rank = device_array(unit.devices).reshape(unit.pp, unit.parallelism.shared_replicas, -1)
            return by_rank.swapaxes(0, 1).reshape(unit.parallelism.shared_replicas, -1)
        return device_array(unit.stage_devices(stage)).reshape(
            unit.parallelism.pipeline_replicas * unit.parallelism.shared_replicas, -1
        )

    return {(unit, stage): devices(units[unit], stage) for unit, stage in stages}


def replicas_of_microbatch(
    pipeline_replicas: Mapping[str, PipelineReplicas], unit: str, microbatch: int, table: Shaped[np.ndarray, "r ..."]
) -> Shaped[np.ndarray, "i ..."]:
    """Selects from a table of all pipeline replicas of a unit the rows of the pipeline replica that takes a microbatch.

    Args:
        pipeline_replicas: Pipeline replicas of the units that have several (`StageGraph.pipeline_replicas`).
        unit: The unit.
        microbatch: The microbatch; -1 for all pipeline replicas, as in ops that run once per step.
        table: One entry for every replica of all pipeline replicas, by pipeline replica.
    """
    if microbatch < 0 or unit not in pipeline_replicas:
        return table
    pipeline_replica, count = (
        pipeline_replicas[unit].of_microbatch[microbatch],
        len(table) // pipeline_replicas[unit].count,
    )
    return table[pipeline_replica * count : (pipeline_replica + 1) * count]


@functools.cache
def source_replicas(sources: int, targets: int) -> Int[np.ndarray, "_ _"]:
    """For every replica of a target stage, the replicas of the source stage whose rows it takes.

    Each of n replicas holds an n-th of a microbatch's rows, in order; target j takes rows of every source whose share
    overlaps [j / targets, (j + 1) / targets). A target with fewer sources than another repeats its last.
    """
    target = np.arange(targets)
    first = target * sources // targets
    last = -(-(target + 1) * sources // targets) - 1
    width = int((last - first).max()) + 1
    return np.minimum(first[:, None] + np.arange(width), last[:, None])


def latest_of_sources(
    ends: Float[np.ndarray, "*m i"], targets: int, exchanged: bool = False
) -> Float[np.ndarray, "*m j"]:
    """For every replica of a target stage, when the last of its source replicas is ready, or another most of theirs.

    Where rows are exchanged (`StageGraph.exchanges`), any source may hold items of any target.
    """
    if exchanged:
        return np.repeat(ends.max(axis=-1, keepdims=True), targets, axis=-1)
    if ends.shape[-1] == targets:
        return ends
    return ends[..., source_replicas(ends.shape[-1], targets)].max(axis=-1)


def last_source(ends: Float[np.ndarray, " i"], targets: int, exchanged: bool = False) -> Int[np.ndarray, " j"]:
    """For every replica of a target stage, the last of its source replicas to be ready, as in `latest_of_sources`."""
    if exchanged:
        return np.full(targets, ends.argmax())
    sources = source_replicas(len(ends), targets)
    return np.take_along_axis(sources, ends[sources].argmax(axis=1)[:, None], axis=1)[:, 0]
