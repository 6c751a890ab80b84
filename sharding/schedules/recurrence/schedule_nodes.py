"""Which nodes of a wait graph are the ops of a schedule, on every replica."""

import collections
import dataclasses
import functools
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from sharding.plans.resolved.stage_graph import StageId
from sharding.schedules.ops import OpKind, Schedule
from sharding.schedules.recurrence.wait_graph import WaitGraph

COLLECTIVES: tuple[OpKind, ...] = ("gather", "reduce")
"""Kinds of ops of which a bundle may consist that compute nothing."""

ByReplica = Int[np.ndarray, " i"]
"""One entry for each replica of a stage:

of the pipeline replica that takes the op's microbatch, or of all in an op once a step.
"""


class BundleNodes(NamedTuple):
    """The nodes of a bundle, two for each of its parts (`joined_parts`).

    Attributes:
        index: Number of the first op in the schedule; the second follows it.
        parts: For each replica of both ops, the number of its part.
        first_shares: By part, the node that ends after the first op's share of the bundle.
        second_shares: By part, the node of the second op's share, which ends with the bundle.
    """

    index: int
    parts: tuple[ByReplica, ByReplica]
    first_shares: Int[np.ndarray, " c"]
    second_shares: Int[np.ndarray, " c"]


class OpFamily(NamedTuple):
    """Ops that differ only in their microbatch.

    Attributes:
        kind: Their kind.
        stage: Their stage, or the one that sends.
        target: The receiving stage of transfers.
        microbatches: Microbatch of each op.
        nodes: Nodes of each op, by replica.
    """

    kind: OpKind
    stage: StageId
    target: StageId
    microbatches: Int[np.ndarray, " o"]
    nodes: Int[np.ndarray, "o i"]


@dataclasses.dataclass(frozen=True, eq=False)
class ScheduleNodes:
    """The wait graph of a schedule on certain devices, and which nodes its ops have there.

    Attributes:
        schedule: The ops.
        graph: The nodes that each node waits for.
        first_nodes: The first node of every op, in the schedule's order. The nodes of its other replicas follow it.
        replicas: Number of replicas of every op: of its stage, of a transfer's target; 1 of `global_norm`.
        bundles: The bundles, whose ops are in parts instead.
    """

    schedule: Schedule
    graph: WaitGraph
    first_nodes: Int[np.ndarray, " o"]
    replicas: Int[np.ndarray, " o"]
    bundles: tuple[BundleNodes, ...]

    @functools.cached_property
    def outside_bundles(self) -> tuple[int, ...]:
        """The numbers of the ops that run alone."""
        inside = {number for bundle in self.bundles for number in (bundle.index, bundle.index + 1)}
        return tuple(number for number in range(len(self.schedule.ops)) if number not in inside)

    @functools.cached_property
    def families(self) -> tuple[OpFamily, ...]:
        """The ops that run alone, in families that differ only in their microbatch."""
        ops = self.schedule.ops
        members: dict[tuple[OpKind, StageId, StageId], list[int]] = collections.defaultdict(list)
        for number in self.outside_bundles:
            kind, unit, stage, _, target_unit, target_stage = ops[number]
            members[kind, (unit, stage), (target_unit, target_stage)].append(number)
        return tuple(
            OpFamily(
                *key,
                np.array([ops[number].microbatch for number in numbers]),
                self.first_nodes[numbers][:, None] + np.arange(self.replicas[numbers[0]]),
            )
            for key, numbers in members.items()
        )
