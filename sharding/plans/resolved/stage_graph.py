"""The acyclic graph of pipeline stages that a plan makes of a graph of modules."""

import dataclasses
import functools
import graphlib
import heapq
from collections.abc import Callable, Iterable, Mapping

from sharding.plans.device_numbers import device_set
from sharding.plans.plan import Plan
from sharding.plans.plan_error import PlanError
from sharding.plans.unit_layers import LayerRun
from sharding.specs.modules import ModuleGraph

StageId = tuple[str, int]
"""A stage: (unit, number of the stage in it). In a unit with chunks it is a virtual stage, in chain order."""

StageReplica = tuple[StageId, int]
"""A stage in one pipeline replica of its unit: (stage, pipeline replica)."""

PipelineRank = tuple[str, int]
"""(unit, pipeline_replica * pp + number of the stage modulo pp). The chunks of a pipeline rank share its devices."""

StageEdge = tuple[StageId, StageId]


@dataclasses.dataclass(frozen=True)
class PipelineReplicas:
    """The pipeline replicas of a unit (`Parallelism.pipeline_replicas`).

    Attributes:
        rank_devices: Devices of every pipeline rank, by pipeline_replica * pp + stage % pp.
        of_microbatch: Which pipeline replica takes each microbatch of a step.
    """

    rank_devices: tuple[frozenset[int], ...]
    of_microbatch: tuple[int, ...]

    @functools.cached_property
    def count(self) -> int:
        """Number of pipeline replicas; each takes at least one microbatch."""
        return max(self.of_microbatch) + 1

    @functools.cached_property
    def positions(self) -> tuple[int, ...]:
        """The position of each microbatch among the microbatches that its pipeline replica takes."""
        return tuple(
            self.of_microbatch[:number].count(pipeline_replica)
            for number, pipeline_replica in enumerate(self.of_microbatch)
        )


@dataclasses.dataclass(frozen=True)
class StageGraph:
    """Stages, the devices of each, and which feeds which.

    Attributes:
        devices: Devices of every stage, of all pipeline replicas of its unit; stages in topological order.
        edges: Pairs (feeding stage, fed stage).
        pp: Number of pipeline ranks of the units with chunks; in other units each stage is a rank of its own.
        exchanges: The edges between stages whose rows hold different items (`UnitPlan.phase_rows`).
        pipeline_replicas: The pipeline replicas of the units that have several.
        compiled: Stages that are a whole unit, of which one program runs all forwards and backwards of a step, or one
            all forwards and another all backwards: they need the inputs of all microbatches (`UnitPlan.executor`).
    """

    devices: Mapping[StageId, frozenset[int]]
    edges: tuple[StageEdge, ...]
    pp: Mapping[str, int] = dataclasses.field(default_factory=dict)
    exchanges: frozenset[StageEdge] = frozenset()
    pipeline_replicas: Mapping[str, "PipelineReplicas"] = dataclasses.field(default_factory=dict)
    compiled: frozenset[StageId] = frozenset()

    def __post_init__(self) -> None:
        order = {stage: position for position, stage in enumerate(self.devices)}
        if any(ranks < 1 for ranks in self.pp.values()):
            raise ValueError(f"StageGraph: pipeline ranks {dict(self.pp)}; a unit has at least one")
        if not self.exchanges <= set(self.edges):
            raise ValueError(f"StageGraph: {set(self.exchanges) - set(self.edges)} are exchanges, but no edges")
        if len(set(self.edges)) != len(self.edges):
            raise ValueError("StageGraph: an edge is listed twice; list each pair of stages once")
        for source, target in self.edges:
            if source not in order or target not in order:
                raise ValueError(f"StageGraph: the edge {source} -> {target} joins a stage that is not in the graph")
            if order[source] >= order[target]:
                raise ValueError(f"StageGraph: {source} feeds {target} but does not come before it")
        for stage, devices in self.devices.items():
            if not devices:
                raise ValueError(f"StageGraph: stage {stage} has no device")
        for rank, stages in self.stages_of.items():
            if any(self.devices[stage] != self.devices[stages[0]] for stage in stages):
                raise ValueError(f"StageGraph: the chunks of {rank} must be on the same devices")
        for unit, pipeline_replicas in self.pipeline_replicas.items():
            ranks = sum(rank[0] == unit for rank in self.stages_of)
            if len(pipeline_replicas.rank_devices) != ranks:
                raise ValueError(
                    f"StageGraph: {unit} has devices for {len(pipeline_replicas.rank_devices)} of its {ranks} ranks"
                )

    @functools.cached_property
    def stages(self) -> tuple[StageId, ...]:
        """All stages, each after the stages that feed it."""
        return tuple(self.devices)

    def is_exchange(self, one: StageId, other: StageId) -> bool:
        """Whether the edge between two stages, in either direction, is an exchange."""
        return (one, other) in self.exchanges or (other, one) in self.exchanges

    @functools.cached_property
    def device_classes(self) -> tuple[tuple[int, ...], ...]:
        """Devices in classes whose members belong to the same pipeline ranks."""
        return device_classes(self.rank_devices.values())

    @functools.cached_property
    def all_devices(self) -> frozenset[int]:
        """Devices of all stages."""
        return frozenset().union(*self.devices.values())

    @functools.cached_property
    def sources(self) -> Mapping[StageId, tuple[StageId, ...]]:
        """For every stage, the stages that feed it."""
        return {stage: tuple(source for source, target in self.edges if target == stage) for stage in self.devices}

    @functools.cached_property
    def targets(self) -> Mapping[StageId, tuple[StageId, ...]]:
        """For every stage, the stages that it feeds."""
        return {stage: tuple(target for source, target in self.edges if source == stage) for stage in self.devices}

    def pipeline_replica_count(self, unit: str) -> int:
        """Number of pipeline replicas of a unit."""
        return self.pipeline_replicas[unit].count if unit in self.pipeline_replicas else 1

    def pipeline_replica_of_microbatch(self, unit: str, microbatch: int) -> int:
        """The pipeline replica of a unit that takes a microbatch."""
        return self.pipeline_replicas[unit].of_microbatch[microbatch] if unit in self.pipeline_replicas else 0

    def position_at(self, unit: str, microbatch: int) -> int:
        """The position of a microbatch among the microbatches that the same pipeline replica of a unit takes."""
        return self.pipeline_replicas[unit].positions[microbatch] if unit in self.pipeline_replicas else microbatch

    def microbatches_of(self, unit: str, pipeline_replica: int, microbatches: int) -> tuple[int, ...]:
        """The microbatches of a step that a pipeline replica of a unit takes, ascending."""
        return tuple(
            number
            for number in range(microbatches)
            if self.pipeline_replica_of_microbatch(unit, number) == pipeline_replica
        )

    @functools.cached_property
    def ranks_of(self) -> Mapping[StageId, tuple[PipelineRank, ...]]:
        """For every stage, its pipeline rank in each pipeline replica of its unit."""
        counts: dict[str, int] = {}
        for unit, _ in self.stages:
            counts[unit] = counts.get(unit, 0) + 1
        ranks = {**counts, **self.pp}  # pipeline ranks of a pipeline replica

        def pipeline_ranks(unit: str, stage: int) -> tuple[PipelineRank, ...]:
            first = stage % ranks[unit]
            return tuple(
                (unit, pipeline_replica * ranks[unit] + first)
                for pipeline_replica in range(self.pipeline_replica_count(unit))
            )

        return {stage_id: pipeline_ranks(*stage_id) for stage_id in self.stages}

    def rank_of_microbatch(self, stage: StageId, microbatch: int) -> PipelineRank:
        """The pipeline rank at which a stage works on a microbatch."""
        ranks = self.ranks_of[stage]
        return ranks[0] if len(ranks) == 1 else ranks[self.pipeline_replicas[stage[0]].of_microbatch[microbatch]]

    @functools.cached_property
    def stages_of(self) -> Mapping[PipelineRank, tuple[StageId, ...]]:
        """For every pipeline rank, its stages in chain order."""
        stages_of: dict[PipelineRank, tuple[StageId, ...]] = {}
        for stage, ranks in self.ranks_of.items():
            for rank in ranks:
                stages_of[rank] = (*stages_of.get(rank, ()), stage)
        return stages_of

    @functools.cached_property
    def rank_devices(self) -> Mapping[PipelineRank, frozenset[int]]:
        """The devices of every pipeline rank."""
        return {
            rank: self.pipeline_replicas[rank[0]].rank_devices[rank[1]]
            if rank[0] in self.pipeline_replicas
            else self.devices[stages[0]]
            for rank, stages in self.stages_of.items()
        }

    @functools.cached_property
    def depths(self) -> Mapping[StageId, int]:
        """For every stage, the number of stages on the longest path from a source to it, itself included."""
        return _longest_paths(self.stages, self.sources.__getitem__)

    @functools.cached_property
    def heights(self) -> Mapping[StageId, int]:
        """For every stage, the number of stages on the longest path from it to a sink, itself included."""
        return _longest_paths(self.stages[::-1], self.targets.__getitem__)

    @functools.cached_property
    def ancestors_of_compiled(self) -> frozenset[StageId]:
        """The stages that feed a stage of `compiled`, directly or through others, and these."""
        reached = set(self.compiled)
        for stage in reversed(self.stages):
            if any(target in reached for target in self.targets[stage]):
                reached.add(stage)
        return frozenset(reached)

    def with_descendants(self, stages: frozenset[StageId]) -> frozenset[StageId]:
        """These stages and all that they feed, directly or through others."""
        reached = set(stages)
        for stage in self.stages:
            if any(source in reached for source in self.sources[stage]):
                reached.add(stage)
        return frozenset(reached)


def _longest_paths(
    order: tuple[StageId, ...], predecessors: Callable[[StageId], tuple[StageId, ...]]
) -> dict[StageId, int]:
    lengths: dict[StageId, int] = {}
    for stage in order:
        lengths[stage] = 1 + max((lengths[predecessor] for predecessor in predecessors(stage)), default=0)
    return lengths


def device_classes(device_sets: Iterable[frozenset[int]]) -> tuple[tuple[int, ...], ...]:
    """Divides devices into classes whose members are in the same of these sets; thousands of devices make few."""
    classes: list[frozenset[int]] = []
    for devices in dict.fromkeys(device_sets):
        new, divided = devices, []
        for members in classes:
            inside = members & new
            if not inside:
                divided.append(members)
                continue
            new -= inside
            divided += [part for part in (inside, members - inside) if part]
        classes = [*divided, new] if new else divided
    return tuple(sorted(tuple(sorted(members)) for members in classes))


def stage_graph(plan: Plan, graph: ModuleGraph, layers: Mapping[StageId, tuple[LayerRun, ...]]) -> StageGraph:
    """The stages of a plan.

    A stage feeds the next one of its unit. For every pair of modules of which one feeds the other, the stage that owns
    the source's last layer feeds the stage that owns the target's first layer, unless they are the same.

    Raises PlanError if stages feed each other in a cycle.
    """
    devices: dict[StageId, frozenset[int]] = {}
    edges: list[StageEdge] = []
    pipeline_replicas: dict[str, PipelineReplicas] = {}
    first_stage: dict[str, StageId] = {}
    last_stage: dict[str, StageId] = {}
    for unit in plan.units:
        rank_devices = [device_set(unit.stage_devices(rank)) for rank in range(unit.pp)]
        if unit.is_compiled:
            rank_devices = [device_set(unit.devices)]
        if unit.parallelism.pipeline_replicas > 1:
            pipeline_replicas[unit.name] = PipelineReplicas(
                tuple(
                    device_set(unit.rank_devices(rank)) for rank in range(unit.parallelism.pipeline_replicas * unit.pp)
                ),
                unit.replica_of_microbatches(plan.microbatches),
            )
        for number in range(unit.program_count):
            stage = (unit.name, number)
            devices[stage] = rank_devices[number % len(rank_devices)]
            if number:
                edges.append(((unit.name, number - 1), stage))
            for run in layers[stage]:
                first_stage.setdefault(run.module, stage)
                last_stage[run.module] = stage
    module_edges = ((last_stage[source], first_stage[target]) for source, target in graph.edges)
    edges = list(dict.fromkeys([*edges, *(edge for edge in module_edges if edge[0] != edge[1])]))
    order = _topological_order(tuple(devices), edges)
    pp = {unit.name: unit.pp for unit in plan.units if unit.parallelism.chunks > 1 and not unit.is_compiled}
    compiled = frozenset((unit.name, 0) for unit in plan.units if unit.is_compiled)
    own_rows = {unit.name for unit in plan.units if unit.phase_rows}
    exchanges = (edge for edge in edges if edge[0][0] != edge[1][0] and own_rows.intersection((edge[0][0], edge[1][0])))
    return StageGraph(
        {stage: devices[stage] for stage in order}, tuple(edges), pp, frozenset(exchanges), pipeline_replicas, compiled
    )


def _topological_order(stages: tuple[StageId, ...], edges: list[StageEdge]) -> list[StageId]:
    """Returns the stages, each after the stages that feed it; otherwise in the order given."""
    position = {stage: number for number, stage in enumerate(stages)}
    sorter = graphlib.TopologicalSorter(dict.fromkeys(stages, ()))
    for source, target in edges:
        sorter.add(target, source)
    try:
        sorter.prepare()
    except graphlib.CycleError as error:
        cycle = ", ".join(f"{unit} {stage}" for unit, stage in sorted(set(error.args[1]), key=position.__getitem__))
        raise PlanError(
            f"the stages {cycle} wait for each other; put modules that enclose another in other units"
        ) from error
    ready: list[int] = []
    order: list[StageId] = []
    while sorter.is_active():
        for stage in sorter.get_ready():
            heapq.heappush(ready, position[stage])
        order.append(stages[heapq.heappop(ready)])
        sorter.done(order[-1])
    return order
