"""Replays a schedule for many orders of its microbatches at once, with the same result as the simulator.

Data-parallel replicas that exchange nothing but gradients until the end of a step are independent pipelines: with dp
30, 60 and 60 there are 30, each with one encoder, two backbones and two generators. They may take their microbatches in
different orders, and a step takes as long as the slowest of them. A pipeline microbatch is one pipeline's share of a
microbatch.

Where a unit has several pipeline replicas, a pipeline has replicas of each. The pipeline replica that works on a
pipeline microbatch follows from its position in the order; it takes as long on any of them, the hops to and from it
included.

Replicas that exchange items inside a microbatch wait for each other, so there is one pipeline, with all replicas of
every stage: more than 100,000 nodes on a thousand devices. A joined replay takes the replicas of a stage for one that
is as slow as the slowest of them. Its steps are an upper bound, and take a fraction of the time to compute.
"""

import collections
import dataclasses
import math
from collections.abc import Iterable, Mapping

import numpy as np
from jaxtyping import Float, Int

from sharding.costs.step_costs import StepCosts
from sharding.plans.resolved.device_groups import group_devices
from sharding.plans.resolved.stage_graph import StageEdge, StageId
from sharding.schedules.ops import COMPUTE_KINDS, OpGraph, OpKind, Schedule, ScheduleError
from sharding.schedules.recurrence.node_builder import schedule_nodes
from sharding.schedules.recurrence.schedule_nodes import ScheduleNodes
from sharding.simulation.op_spans.op_seconds import seconds_by_costs

PipelineMicrobatchSeconds = Float[np.ndarray, "r c"]
"""Seconds by row (one pipeline's ops of a kind) and pipeline microbatch; c * m + i is microbatch i of pipeline c."""

_BLOCK = 256  # orders whose times stay in the processor's cache


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ScheduleReplay:
    """The ops of one pipeline in a schedule.

    Attributes:
        nodes: The ops of one pipeline.
        pipelines: Number of pipelines.
        replicas: Number of replicas of every stage in one pipeline, of one pipeline replica. Each stands for as many
            consecutive replicas of the plan as there are for it, and is as slow as the slowest of them.
        compute_rows: Rows of the pipeline microbatches' seconds for ops of `COMPUTE_KINDS`: (kind, stage, replica);
            hops follow.
        hop_rows: The rows of hops: (kind, edge, replica of the receiver).
        slots: By node, the index of its seconds among the seconds of all positions: r * m + i for row r at position i;
            then come `fixed_seconds`.
        fixed_seconds: Seconds that are the same in any order; the first are 0.
    """

    nodes: ScheduleNodes
    pipelines: int
    replicas: Mapping[StageId, int]
    compute_rows: tuple[tuple[OpKind, StageId, int], ...]
    hop_rows: tuple[tuple[OpKind, StageEdge, int], ...]
    slots: Int[np.ndarray, " n"]
    fixed_seconds: Float[np.ndarray, " f"]

    @property
    def op_graph(self) -> OpGraph:
        """All ops of a step."""
        return self.nodes.schedule.op_graph

    @property
    def microbatches(self) -> int:
        """Microbatches of a step, which is also the number of pipeline microbatches of a pipeline."""
        return self.op_graph.microbatches

    @property
    def given_orders(self) -> Int[np.ndarray, "p m"]:
        """The pipeline microbatches of every pipeline in the order in which they are given."""
        return np.arange(self.pipelines * self.microbatches).reshape(self.pipelines, -1)

    def pipeline_microbatch_seconds(self, costs: StepCosts) -> PipelineMicrobatchSeconds:
        """Returns the seconds of all pipeline microbatches."""
        computes: dict[tuple[OpKind, StageId], None]
        computes = dict.fromkeys((kind, stage) for kind, stage, _ in self.compute_rows)
        rows = [self._by_replica(costs.stages[stage].of_pass(kind), stage) for kind, stage in computes]
        hops, receiver = {"hop": costs.hops, "gradient_hop": costs.gradient_hops}, {"hop": 1, "gradient_hop": 0}
        transfers = dict.fromkeys((kind, edge) for kind, edge, _ in self.hop_rows)
        rows += [self._by_replica(hops[kind][edge], edge[receiver[kind]]) for kind, edge in transfers]
        return np.concatenate(rows)

    def _by_replica(self, seconds: Float[np.ndarray, "m i"], stage: StageId) -> Float[np.ndarray, "_ c"]:
        """The seconds of every replica of one pipeline, by pipeline microbatch."""
        replicas = self.replicas[stage]
        slowest = seconds.reshape(self.microbatches, self.pipelines, replicas, -1).max(axis=3)
        return slowest.transpose(2, 1, 0).reshape(replicas, -1)

    def largest_shares(self, pipeline_microbatch_seconds: PipelineMicrobatchSeconds) -> Float[np.ndarray, " c"]:
        """Every pipeline microbatch's share of all seconds of a stage's replica, of the one where it is largest."""
        shares: dict[tuple[StageId, int], Float[np.ndarray, " c"]] = {}
        for (_, stage, replica), seconds in zip(self.compute_rows, pipeline_microbatch_seconds, strict=False):
            shares[stage, replica] = shares.get((stage, replica), 0.0) + seconds
        return np.max([share / max(float(share.sum()), 1e-300) for share in shares.values()], axis=0)

    def step_seconds(
        self, pipeline_microbatch_seconds: PipelineMicrobatchSeconds, orders: Int[np.ndarray, "b m"]
    ) -> Float[np.ndarray, " b"]:
        """Seconds of a pipeline's step for each of these orders of pipeline microbatches."""
        return StepSeconds(self, pipeline_microbatch_seconds)(orders)

    def with_fixed_seconds(self, orders: int) -> Float[np.ndarray, "_ b"]:
        """Returns an array for the seconds of all rows at all positions in some orders, and then `fixed_seconds`."""
        rows = (len(self.compute_rows) + len(self.hop_rows)) * self.microbatches
        seconds = np.empty((rows + len(self.fixed_seconds), orders))
        seconds[rows:] = self.fixed_seconds[:, None]
        return seconds


class StepSeconds:
    """Computes a pipeline's step for many orders of pipeline microbatches.

    It keeps its arrays from one call to the next, since the system takes longer to give new ones than it takes to
    compute with them. One thread uses it.

    Args:
        replay: The schedule.
        pipeline_microbatch_seconds: Seconds of the pipeline microbatches.
    """

    def __init__(self, replay: ScheduleReplay, pipeline_microbatch_seconds: PipelineMicrobatchSeconds) -> None:
        self._replay, self._table = replay, pipeline_microbatch_seconds
        self._arrays: dict[int, tuple[Float[np.ndarray, "_ b"], Float[np.ndarray, "n b"]]] = {}  # by number of orders

    def __call__(self, orders: Int[np.ndarray, "b m"]) -> Float[np.ndarray, " b"]:
        """Seconds of the step for each of these orders."""
        return np.concatenate(
            [self._of_block(orders[first : first + _BLOCK]) for first in range(0, len(orders), _BLOCK)]
        )

    def _of_block(self, orders: Int[np.ndarray, "b m"]) -> Float[np.ndarray, " b"]:
        graph, count = self._replay.nodes.graph, len(orders)
        if count not in self._arrays:
            self._arrays[count] = self._replay.with_fixed_seconds(count), np.empty((graph.count, count))
        seconds, ends = self._arrays[count]
        row_seconds = seconds[: -len(self._replay.fixed_seconds)].reshape(len(self._table), -1)  # [r, m * b]
        np.take(self._table, orders.T.ravel(), axis=1, out=row_seconds, mode="clip")
        np.take(seconds, self._replay.slots, axis=0, out=ends, mode="clip")
        graph.add_starts(ends)
        return ends[graph.last_nodes].max(axis=0)


def build_replay(
    devices: Mapping[StageId, Int[np.ndarray, "_ _"]],
    schedule: Schedule,
    costs: StepCosts,
    rows: int,
    rendezvous: bool = False,
) -> ScheduleReplay:
    """The replay of a schedule.

    Args:
        devices: Devices of every stage, as [pipeline replicas * replicas, ranks of a replica].
        schedule: An order that `check_schedule` accepts.
        costs: Only what does not depend on the order is taken of them: gathers, reductions, updates.
        rows: Rows of a microbatch; every pipeline gets at least one.
        rendezvous: Whether a hop occupies the devices of both its ends.

    Raises:
        ScheduleError: The schedule has bundles, or a stage whose microbatches run in one program.
    """
    _refuse_lockstep(schedule)
    graph = schedule.op_graph.stage_graph
    pipeline_replicas = {stage: graph.pipeline_replica_count(stage[0]) for stage in devices}
    # Where hops occupy devices, all replicas wait for each other to send tied weights and their gradients.
    is_joined = graph.exchanges or (rendezvous and schedule.op_graph.tied_stages)
    pipelines = 1 if is_joined else count_pipelines(devices, rows, pipeline_replicas)
    replicas = {stage: len(held) // pipeline_replicas[stage] // pipelines for stage, held in devices.items()}
    first_pipeline = {
        stage: np.concatenate(
            [replica_devices[: replicas[stage]] for replica_devices in np.split(held, pipeline_replicas[stage])]
        )
        for stage, held in devices.items()
    }
    return _replay_of_nodes(schedule_nodes(first_pipeline, schedule, rendezvous), pipelines, replicas, costs)


def build_joined_replay(
    devices: Mapping[StageId, Int[np.ndarray, "_ _"]], schedule: Schedule, costs: StepCosts, rendezvous: bool = False
) -> ScheduleReplay:
    """The joined replay of a schedule with one pipeline; takes the arguments of `build_replay`.

    Raises:
        ScheduleError: As `build_replay`.
    """
    _refuse_lockstep(schedule)
    graph = schedule.op_graph.stage_graph
    joined = {stage: held.reshape(graph.pipeline_replica_count(stage[0]), -1) for stage, held in devices.items()}
    return _replay_of_nodes(schedule_nodes(joined, schedule, rendezvous), 1, dict.fromkeys(devices, 1), costs)


def has_replay(schedule: Schedule) -> bool:
    """Whether the microbatches of a schedule can be ordered: it has no bundles and no compiled units."""
    return not schedule.bundled and not schedule.op_graph.stage_graph.compiled


def _refuse_lockstep(schedule: Schedule) -> None:
    """Raises ScheduleError if a schedule has no replay."""
    if schedule.bundled:
        raise ScheduleError(
            f"{min(schedule.bundled)} runs in one program with another op: with such bundles only the reorderings none "
            "and intra_microbatch are possible"
        )
    compiled = schedule.op_graph.stage_graph.compiled
    if compiled:
        raise ScheduleError(
            f'unit {min(compiled)[0]} has the executor "compiled", so its microbatches run in lockstep: only the '
            "reorderings none and intra_microbatch are possible"
        )


def _replay_of_nodes(
    nodes: ScheduleNodes, pipelines: int, replicas: Mapping[StageId, int], costs: StepCosts
) -> ScheduleReplay:
    """Builds the replay from the nodes of one pipeline."""
    m, seconds_of = nodes.schedule.op_graph.microbatches, seconds_by_costs(costs)
    compute_rows, hop_rows = _rows(nodes.schedule.op_graph, replicas)
    row_of: dict[tuple[OpKind, StageId | StageEdge], int]
    row_of = {row[:2]: number for number, row in reversed([*enumerate((*compute_rows, *hop_rows))])}
    first_fixed = (len(compute_rows) + len(hop_rows)) * m
    slots, fixed = np.full(nodes.graph.count, first_fixed), [0.0]
    for kind, stage, target, microbatches, family_nodes in nodes.families:
        if microbatches[0] >= 0:
            row = row_of[kind, {"hop": (stage, target), "gradient_hop": (target, stage)}.get(kind, stage)]
            slots[family_nodes] = (row + np.arange(family_nodes.shape[1])) * m + microbatches[:, None]
        else:
            slots[family_nodes] = first_fixed + len(fixed)
            fixed.append(float(seconds_of(kind, stage, target)[0]))
    return ScheduleReplay(
        nodes=nodes,
        pipelines=pipelines,
        replicas=replicas,
        compute_rows=compute_rows,
        hop_rows=hop_rows,
        slots=slots,
        fixed_seconds=np.array(fixed),
    )


def _rows(
    op_graph: OpGraph, replicas: Mapping[StageId, int]
) -> tuple[tuple[tuple[OpKind, StageId, int], ...], tuple[tuple[OpKind, StageEdge, int], ...]]:
    """Returns the compute rows and the hop rows of `ScheduleReplay`; the rows of an op's replicas follow each other."""
    graph = op_graph.stage_graph
    compute_rows: list[tuple[OpKind, StageId, int]] = [
        (kind, stage, replica)
        for kind in COMPUTE_KINDS
        for stage in graph.stages
        if kind in op_graph.passes_of(stage)
        for replica in range(replicas[stage])
    ]
    returning = [edge for edge in graph.edges if edge[0] in op_graph.backward_stages]
    hop_rows = [*_hop_rows("hop", graph.edges, 1, replicas), *_hop_rows("gradient_hop", returning, 0, replicas)]
    return tuple(compute_rows), tuple(hop_rows)


def _hop_rows(
    kind: OpKind, edges: Iterable[StageEdge], end: int, replicas: Mapping[StageId, int]
) -> list[tuple[OpKind, StageEdge, int]]:
    """The rows of one kind of hop, which has one for each replica of an end of its edge: 0 the source, 1 the target."""
    return [(kind, edge, replica) for edge in edges for replica in range(replicas[edge[end]])]


def count_pipelines(
    devices: Mapping[StageId, Int[np.ndarray, "_ _"]], rows: int, pipeline_replicas: Mapping[StageId, int]
) -> int:
    """Number of independent and equal pipelines: the most that divide all replicas and the rows of a microbatch.

    It is 1 where units share devices in such a way that pipelines would not be independent, or not equal.

    Args:
        devices: Devices of every stage, as [pipeline replicas * replicas, ranks of a replica].
        rows: Rows of a microbatch.
        pipeline_replicas: Number of pipeline replicas of every stage.
    """
    groups_of = group_devices(devices).groups_of
    replicas = {stage: len(groups) // pipeline_replicas[stage] for stage, groups in groups_of.items()}
    count = math.gcd(rows, *replicas.values())
    users: dict[int, list[tuple[StageId, int, tuple[int, int]]]] = collections.defaultdict(list)
    for stage, groups in groups_of.items():
        for number, replica_groups in enumerate(groups.tolist()):
            pipeline_replica, replica = divmod(number, replicas[stage])
            pipeline, place = divmod(replica, replicas[stage] // count)
            for group in set(replica_groups):
                users[group].append((stage, pipeline, (pipeline_replica, place)))
    sharing: list[set[frozenset[tuple[StageId, tuple[int, int]]]]] = [set() for _ in range(count)]
    for group_users in users.values():
        pipelines = {pipeline for _, pipeline, _ in group_users}
        if len(pipelines) > 1:
            return 1
        sharing[pipelines.pop()].add(frozenset((stage, replica) for stage, _, replica in group_users))
    return count if all(shared_groups == sharing[0] for shared_groups in sharing) else 1
