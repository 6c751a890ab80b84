"""Which nodes of a range wait for which of another; every kind of table is made once."""

import dataclasses
import functools

import numpy as np

from sharding.plans.resolved.device_groups import source_replicas
from sharding.schedules.recurrence.bundle_parts import joined_parts
from sharding.schedules.recurrence.graph_builder import WaitGraphBuilder
from sharding.schedules.recurrence.schedule_nodes import ByReplica
from sharding.schedules.recurrence.shared_devices import HeldDevices, StageDevices, entries_of_rows


@dataclasses.dataclass(frozen=True, eq=False)
class OpInBundle:
    """The parts of a bundle that the replicas of one of its ops belong to.

    Attributes:
        parts: For each replica, the number of its part.
        members: The table by which the parts wait for what their replicas take.
    """

    parts: ByReplica
    members: int


class WaitTables:
    """The numbers of wait tables of a graph (`WaitGraphBuilder.table`)."""

    def __init__(self, builder: WaitGraphBuilder, devices: StageDevices) -> None:
        self._table, self._devices = builder.table, devices
        # Called for every op of a schedule, with few arguments that differ.
        self.same = functools.cache(self._same)
        self.one_for_all = functools.cache(self._one_for_all)
        self.all_of = functools.cache(self._all_of)
        self.senders = functools.cache(self._senders)
        self.senders_in_parts = functools.cache(self._senders_in_parts)
        self.until_free = functools.cache(self._until_free)
        self.bundle = functools.cache(self._bundle)

    def _same(self, count: int) -> int:
        """Table by which each node waits for the node with its own number."""
        return self._table(np.arange(count)[None])

    def _one_for_all(self, count: int) -> int:
        """Table by which all nodes wait for one."""
        return self._table(np.zeros((1, count), int))

    def _all_of(self, count: int) -> int:
        """Table by which one node waits for all of a range."""
        return self._table(np.arange(count)[:, None])

    def _senders(self, sources: int, targets: int) -> int:
        """Table by which the replicas of a hop's target wait for the source replicas whose rows they take."""
        return self._table(source_replicas(sources, targets).T)

    def _until_free(self, waiting: HeldDevices, holding: HeldDevices) -> int:
        """Table by which nodes wait for the nodes that held some of their devices."""
        return self._table(waiting.waits_for(holding))

    def _senders_in_parts(self, source: OpInBundle, targets: int) -> int:
        """As `_senders`, where the source replicas end with the parts of a bundle."""
        return self._table(source.parts[source_replicas(len(source.parts), targets)].T)

    def _bundle(
        self, first: HeldDevices, second: HeldDevices, is_joined: bool
    ) -> tuple[HeldDevices, tuple[OpInBundle, OpInBundle]]:
        """The devices of the parts of a bundle, and in which part each replica of both its ops is.

        Args:
            first: The replicas of one op.
            second: The replicas of the other op.
            is_joined: Whether all of them are one part.
        """
        parts = (np.zeros(first.count, int), np.zeros(second.count, int))
        if not is_joined:
            parts = joined_parts(first.groups, second.groups)
        held = self._devices.of_bundle((first, second), parts)
        return held, (self._op_in_bundle(parts[0], held.count), self._op_in_bundle(parts[1], held.count))

    def _op_in_bundle(self, parts: ByReplica, count: int) -> OpInBundle:
        return OpInBundle(parts, self._table(entries_of_rows(parts, np.arange(len(parts)), count).T))
