"""Devices by stage and instance, those that always work alike counted as one; and which instances feed which."""

import dataclasses
import functools
from collections.abc import Iterable, Mapping

import numpy as np
from jaxtyping import Bool, Float, Int

from sharding.plans.plan import Plan
from sharding.plans.stage_graph import StageId


@dataclasses.dataclass(frozen=True, eq=False)
class DeviceGroups:
    """Devices that belong to the same instance of every stage; thousands of devices make hundreds of groups.

    Attributes:
        rows: By stage, the groups of each instance. Where one has fewer than another, its first stands again.
        counted: By stage, whether an entry of `rows` stands for the first time.
        sizes: Devices of each group.
        members: For every device in ascending order, (device, group).
    """

    groups_of: Mapping[StageId, Int[np.ndarray, "_ _"]]
    is_first: Mapping[StageId, Bool[np.ndarray, "_ _"]]
    sizes: Int[np.ndarray, " n"]
    members: Int[np.ndarray, "_ _"]

    @property
    def device_count(self) -> int:
        """Distinct devices."""
        return len(self.members)

    def mean(self, seconds: Float[np.ndarray, " n"]) -> float:
        """The mean over all devices of a figure of each group."""
        return float(seconds @ self.sizes / self.device_count)

    def stage_mean(self, node: StageId, seconds: Float[np.ndarray, " n"]) -> float:
        """The mean over the devices of a stage of a figure of each group."""
        inside = self.groups_of[node][self.is_first[node]]
        return float(seconds[inside] @ self.sizes[inside] / self.sizes[inside].sum())


def group_devices(devices: Mapping[StageId, Int[np.ndarray, "_ _"]]) -> DeviceGroups:
    """Groups the devices of stages, given as [instances, ranks of an instance] each."""
    known, places = np.unique(np.concatenate([held.ravel() for held in devices.values()]), return_inverse=True)
    ends = np.cumsum([held.size for held in devices.values()])
    positions = {
        node: part.reshape(held.shape)
        for (node, held), part in zip(devices.items(), np.split(places.ravel(), ends[:-1]), strict=True)
    }
    # Chunks lie on the same devices, so that few rows of the membership table differ.
    alike = {(held.tobytes(), held.shape): held for held in positions.values()}
    instance_of = np.full((len(alike), len(known)), -1)
    for row, held in enumerate(alike.values()):
        instance_of[row, held] = np.arange(len(held))[:, None]
    _, group_of = np.unique(instance_of, axis=1, return_inverse=True)
    group_of = group_of.ravel()
    folded = {node: _fold(group_of[held]) for node, held in positions.items()}
    return DeviceGroups(
        {node: rows for node, (rows, _) in folded.items()},
        {node: counted for node, (_, counted) in folded.items()},
        np.bincount(group_of),
        np.stack([known, group_of], axis=1),
    )


def _fold(groups: Int[np.ndarray, "_ _"]) -> tuple[Int[np.ndarray, "i g"], Bool[np.ndarray, "i g"]]:
    """Each instance's groups once, and which entries are no repetition made to fill the row."""
    ordered = np.sort(groups, axis=1)
    fresh = np.ones(ordered.shape, bool)
    fresh[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    first = np.argsort(~fresh, axis=1, kind="stable")[:, : fresh.sum(axis=1).max()]
    counted = np.take_along_axis(fresh, first, axis=1)
    return np.where(counted, np.take_along_axis(ordered, first, axis=1), ordered[:, :1]), counted


def replica_devices(plan: Plan, nodes: Iterable[StageId]) -> dict[StageId, Int[np.ndarray, "_ _"]]:
    """The devices of every stage as [instances, ranks of an instance]."""
    units = {unit.name: unit for unit in plan.units}
    return {node: np.array(units[node[0]].stage_devices(node[1])).reshape(units[node[0]].dp, -1) for node in nodes}


@functools.cache
def source_replicas(sources: int, targets: int) -> Int[np.ndarray, "_ _"]:
    """For every target instance, the source instances whose rows it takes.

    Each of n instances holds an n-th of a microbatch's rows, in order; target j takes rows of every source whose share
    overlaps [j / targets, (j + 1) / targets). Where it takes from fewer than another does, its last stands again.
    """
    target = np.arange(targets)
    first = target * sources // targets
    last = -(-(target + 1) * sources // targets) - 1
    width = int((last - first).max()) + 1
    return np.minimum(first[:, None] + np.arange(width), last[:, None])


def latest_of_sources(ends: Float[np.ndarray, " i"], targets: int) -> Float[np.ndarray, " j"]:
    """When the last of its sources is ready, for every target instance."""
    if len(ends) == targets:
        return ends
    return ends[source_replicas(len(ends), targets)].max(axis=1)
