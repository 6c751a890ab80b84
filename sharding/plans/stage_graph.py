"""The acyclic graph of pipeline stages that a plan makes of a graph of modules."""

import collections
import dataclasses
import functools
import heapq
from collections.abc import Callable, Iterable, Mapping

from sharding.plans.plan import Plan, PlanError, stage_layers
from sharding.specs.modules import ModuleGraph

StageId = tuple[str, int]
"""A stage: (unit, number of the stage in it); of a unit with chunks, a virtual stage, in chain order."""

PipelineRank = tuple[str, int]
"""Where stages lie: (unit, number of the stage modulo pp). The chunks of a unit's place share its devices."""

StageEdge = tuple[StageId, StageId]


@dataclasses.dataclass(frozen=True)
class StageGraph:
    """Stages, the devices each holds, and who feeds whom.

    Attributes:
        lanes: Devices of every stage; stages in topological order.
        edges: Pairs (feeding stage, fed stage).
        pp: Places of the units with chunks; in every other unit, each stage has a place of its own.
    """

    devices: Mapping[StageId, frozenset[int]]
    edges: tuple[StageEdge, ...]
    pp: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        order = {node: position for position, node in enumerate(self.devices)}
        if len(set(self.edges)) != len(self.edges):
            raise ValueError("StageGraph: an edge stands twice; list each pair of stages once")
        for source, target in self.edges:
            if source not in order or target not in order:
                raise ValueError(f"StageGraph: the edge {source} -> {target} joins a stage that is not in the graph")
            if order[source] >= order[target]:
                raise ValueError(f"StageGraph: {source} feeds {target} but does not stand before it")
        for node, lanes in self.devices.items():
            if not lanes:
                raise ValueError(f"StageGraph: stage {node} holds no device")
        for place, nodes in self.stages_of.items():
            if any(self.devices[node] != self.devices[nodes[0]] for node in nodes):
                raise ValueError(f"StageGraph: the chunks of {place} must lie on the same devices")

    @functools.cached_property
    def stages(self) -> tuple[StageId, ...]:
        """All stages, each after those that feed it."""
        return tuple(self.devices)

    @functools.cached_property
    def all_devices(self) -> frozenset[int]:
        """Devices of all stages."""
        return frozenset().union(*self.devices.values())

    @functools.cached_property
    def sources(self) -> Mapping[StageId, tuple[StageId, ...]]:
        """For every stage, the stages that feed it."""
        return {node: tuple(s for s, t in self.edges if t == node) for node in self.devices}

    @functools.cached_property
    def targets(self) -> Mapping[StageId, tuple[StageId, ...]]:
        """For every stage, the stages it feeds."""
        return {node: tuple(t for s, t in self.edges if s == node) for node in self.devices}

    @functools.cached_property
    def rank_of(self) -> Mapping[StageId, PipelineRank]:
        """For every stage, its place."""
        return {node: (node[0], node[1] % self.pp.get(node[0], node[1] + 1)) for node in self.stages}

    @functools.cached_property
    def stages_of(self) -> Mapping[PipelineRank, tuple[StageId, ...]]:
        """For every place, its stages in chain order."""
        found: dict[PipelineRank, tuple[StageId, ...]] = {}
        for node, place in self.rank_of.items():
            found[place] = (*found.get(place, ()), node)
        return found

    @functools.cached_property
    def depths(self) -> Mapping[StageId, int]:
        """For every stage, the number of stages on the longest path from a source to it, itself included."""
        return _longest_paths(self.stages, self.sources.__getitem__)

    @functools.cached_property
    def heights(self) -> Mapping[StageId, int]:
        """For every stage, the number of stages on the longest path from it to a sink, itself included."""
        return _longest_paths(self.stages[::-1], self.targets.__getitem__)

    def with_descendants(self, nodes: frozenset[StageId]) -> frozenset[StageId]:
        """These stages and all that they feed, directly or through others."""
        reached = set(nodes)
        for node in self.stages:
            if any(source in reached for source in self.sources[node]):
                reached.add(node)
        return frozenset(reached)


def _longest_paths(order: tuple[StageId, ...], before: Callable[[StageId], tuple[StageId, ...]]) -> dict[StageId, int]:
    lengths: dict[StageId, int] = {}
    for node in order:
        lengths[node] = 1 + max((lengths[other] for other in before(node)), default=0)
    return lengths


def device_classes(held: Iterable[frozenset[int]]) -> tuple[tuple[int, ...], ...]:
    """Divides devices into classes whose members are in the same of these sets; thousands of devices make few."""
    within: dict[int, list[int]] = collections.defaultdict(list)
    for number, lanes in enumerate(dict.fromkeys(held)):
        for lane in lanes:
            within[lane].append(number)
    classes: dict[tuple[int, ...], list[int]] = collections.defaultdict(list)
    for lane in sorted(within):
        classes[tuple(within[lane])].append(lane)
    return tuple(map(tuple, classes.values()))


def stage_graph(plan: Plan, graph: ModuleGraph) -> StageGraph:
    """The stages of a plan.

    A stage feeds the next one of its unit. For every pair of modules of which one feeds the other, the stage that
    owns the source's last layer feeds the stage that owns the target's first layer, unless they are the same.

    Raises PlanError if the stages feed each other in a circle.
    """
    lanes: dict[StageId, frozenset[int]] = {}
    edges: list[StageEdge] = []
    first: dict[str, StageId] = {}
    last: dict[str, StageId] = {}
    for unit in plan.units:
        held = [frozenset(unit.stage_devices(stage)) for stage in range(unit.pp)]
        for stage, runs in enumerate(stage_layers(unit, graph)):
            node = (unit.name, stage)
            lanes[node] = held[stage % unit.pp]
            if stage:
                edges.append(((unit.name, stage - 1), node))
            for module, _, _ in runs:
                first.setdefault(module, node)
                last[module] = node
    edges += [(last[source], first[target]) for source, target in graph.edges if last[source] != first[target]]
    edges = list(dict.fromkeys(edges))
    order = _topological(tuple(lanes), edges)
    pp = {unit.name: unit.pp for unit in plan.units if unit.chunks > 1}
    return StageGraph({node: lanes[node] for node in order}, tuple(edges), pp)


def _topological(nodes: tuple[StageId, ...], edges: list[StageEdge]) -> list[StageId]:
    """Each stage after those that feed it; otherwise in the order given."""
    number = {node: index for index, node in enumerate(nodes)}
    missing = collections.Counter(target for _, target in edges)
    targets: dict[StageId, list[StageId]] = collections.defaultdict(list)
    for source, target in edges:
        targets[source].append(target)
    ready = [index for index, node in enumerate(nodes) if not missing[node]]
    order: list[StageId] = []
    while ready:
        order.append(nodes[heapq.heappop(ready)])
        for target in targets[order[-1]]:
            missing[target] -= 1
            if not missing[target]:
                heapq.heappush(ready, number[target])
    if len(order) < len(nodes):
        rest = ", ".join(f"{unit} {stage}" for unit, stage in nodes if (unit, stage) not in order)
        raise PlanError(f"the stages {rest} wait for each other; put modules that enclose another in other units")
    return order
