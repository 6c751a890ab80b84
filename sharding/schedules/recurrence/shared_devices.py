"""Which nodes hold devices that others need after them."""

import functools
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Int

from sharding.plans.resolved.device_groups import group_devices, source_replicas
from sharding.plans.resolved.stage_graph import StageGraph, StageId
from sharding.schedules.recurrence.graph_builder import NO_NODE


class HeldDevices:
    """The devices of nodes.

    Attributes:
        groups: The groups of devices of each node (`DeviceGroups`), [nodes, groups]; may repeat a group.
        classes: Numbers of the classes of devices (`StageDevices`) that the nodes hold together.
        count: Number of nodes.
    """

    def __init__(self, groups: Int[np.ndarray, "k g"], classes: tuple[int, ...], group_count: int) -> None:
        self.groups, self.classes, self.count = groups, classes, len(groups)
        self._group_count = group_count

    @functools.cached_property
    def holders(self) -> Int[np.ndarray, "n w"]:
        """By group of devices, the nodes that hold it; shorter rows are filled with `NO_NODE`."""
        nodes = np.broadcast_to(np.arange(self.count)[:, None], self.groups.shape)
        return entries_of_rows(self.groups.ravel(), nodes.ravel(), self._group_count)

    def waits_for(self, holding: "HeldDevices") -> Int[np.ndarray, "w k"]:
        """For each of these nodes, the nodes of others that hold some of its devices; filled with `NO_NODE`."""
        awaited = holding.holders[self.groups].reshape(self.count, -1)
        if awaited.shape[1] == 1:
            return awaited.T
        nodes, columns = np.nonzero(awaited != NO_NODE)
        return entries_of_rows(nodes, awaited[nodes, columns], self.count).T


class StageDevices:
    """The devices of all stages, in classes whose members belong to the same stages and pipeline replicas.

    Ops hold whole classes, so that the order in which they hold each of a few is the order on thousands of devices.

    Attributes:
        class_count: Number of classes.
    """

    def __init__(self, devices: Mapping[StageId, Int[np.ndarray, "_ _"]], graph: StageGraph) -> None:
        groups = group_devices(devices)
        self._group_count = len(groups.sizes)
        self._replicas = {stage: graph.pipeline_replica_count(stage[0]) for stage in devices}
        self._groups_of = groups.groups_of
        tables = {
            (table.shape, table.tobytes()): table
            for stage, stage_groups in groups.groups_of.items()
            for table in np.split(stage_groups, self._replicas[stage])
        }
        member = np.zeros((len(tables), self._group_count), bool)
        for row, table in zip(member, tables.values(), strict=True):
            row[table.ravel()] = True
        _, class_of = np.unique(np.packbits(member, axis=0).T, axis=0, return_inverse=True)
        self._class_of = class_of.ravel()
        self.class_count = 1 + int(self._class_of.max())
        self._held: dict[tuple[tuple[int, ...], bytes], HeldDevices] = {}

    def of(self, groups: Int[np.ndarray, "k g"]) -> HeldDevices:
        """Returns nodes that hold these groups; the same object for the same groups."""
        key = (groups.shape, groups.tobytes())
        if key not in self._held:
            classes = tuple(np.flatnonzero(np.bincount(self._class_of[groups].ravel())).tolist())
            self._held[key] = HeldDevices(groups, classes, self._group_count)
        return self._held[key]

    @functools.cached_property
    def everything(self) -> HeldDevices:
        """One node that holds all devices."""
        return self.of(np.arange(self._group_count)[None])

    def of_pipeline_replicas(self, stage: StageId) -> tuple[HeldDevices, ...]:
        """The replicas of a stage, in each pipeline replica of its unit."""
        return tuple(self.of(table) for table in np.split(self._groups_of[stage], self._replicas[stage]))

    def of_all_pipeline_replicas(self, stage: StageId) -> HeldDevices:
        """The replicas of a stage in all pipeline replicas of its unit."""
        return self.of(self._groups_of[stage])

    def joined(self, *held: HeldDevices) -> HeldDevices:
        """One node that holds the devices of all these nodes."""
        is_held = np.zeros(self._group_count, bool)
        for devices in held:
            is_held[devices.groups] = True
        return self.of(np.flatnonzero(is_held)[None])

    def of_hop(self, source: HeldDevices, target: HeldDevices) -> HeldDevices:
        """For each replica of a hop's target, its devices and the ones of the source replicas whose rows it takes."""
        senders = source.groups[source_replicas(len(source.groups), len(target.groups))]
        return self.of(np.concatenate([target.groups, senders.reshape(len(target.groups), -1)], axis=1))

    def of_bundle(self, held: Sequence[HeldDevices], parts: Sequence[Int[np.ndarray, " i"]]) -> HeldDevices:
        """The parts of a bundle, given the replicas of both its ops and in which part each is."""
        rows = [np.repeat(part, devices.groups.shape[1]) for devices, part in zip(held, parts, strict=True)]
        groups = [devices.groups.ravel() for devices in held]
        held_by_parts = entries_of_rows(np.concatenate(rows), np.concatenate(groups), 1 + int(parts[0].max()))
        return self.of(np.where(held_by_parts == NO_NODE, held_by_parts[:, :1], held_by_parts))


def entries_of_rows(rows: Int[np.ndarray, " p"], entries: Int[np.ndarray, " p"], count: int) -> Int[np.ndarray, "k w"]:
    """The distinct entries of each row, ascending; shorter rows are filled with `NO_NODE`.

    Args:
        rows: Pairs with `entries`, in any order: the row.
        entries: The entry, at least 0.
        count: Number of rows.
    """
    width = 1 + int(entries.max(initial=0))
    rows, entries = np.divmod(np.unique(rows * width + entries), width)
    columns = np.arange(len(rows)) - np.searchsorted(rows, rows)
    table = np.full((count, 1 + int(columns.max(initial=0))), NO_NODE)
    table[rows, columns] = entries
    return table
