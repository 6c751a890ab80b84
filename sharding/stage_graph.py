"""The acyclic graph of pipeline stages that a plan makes of a graph of modules."""

import collections
import dataclasses
import functools
import heapq
from collections.abc import Callable, Iterable, Mapping

from sharding.plan import Plan, PlanError, stage_layers
from sharding.specs import ModuleGraph

Node = tuple[str, int]
"""A stage: (unit, number of the stage in it); of a unit with chunks, a virtual stage, in chain order."""

Place = tuple[str, int]
"""Where stages lie: (unit, number of the stage modulo pp). The chunks of a unit's place share its devices."""

Edge = tuple[Node, Node]


@dataclasses.dataclass(frozen=True)
class StageGraph:
    """Stages, the devices each holds, and who feeds whom.

    Attributes:
        lanes: Devices of every stage; stages in topological order.
        edges: Pairs (feeding stage, fed stage).
        pp: Places of the units with chunks; in every other unit, each stage has a place of its own.
    """

    lanes: Mapping[Node, frozenset[int]]
    edges: tuple[Edge, ...]
    pp: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        order = {node: position for position, node in enumerate(self.lanes)}
        if len(set(self.edges)) != len(self.edges):
            raise ValueError("StageGraph: an edge stands twice; list each pair of stages once")
        for source, target in self.edges:
            if source not in order or target not in order:
                raise ValueError(f"StageGraph: the edge {source} -> {target} joins a stage that is not in the graph")
            if order[source] >= order[target]:
                raise ValueError(f"StageGraph: {source} feeds {target} but does not stand before it")
        for node, lanes in self.lanes.items():
            if not lanes:
                raise ValueError(f"StageGraph: stage {node} holds no device")
        for place, nodes in self.chunks.items():
            if any(self.lanes[node] != self.lanes[nodes[0]] for node in nodes):
                raise ValueError(f"StageGraph: the chunks of {place} must lie on the same devices")

    @functools.cached_property
    def nodes(self) -> tuple[Node, ...]:
        """All stages, each after those that feed it."""
        return tuple(self.lanes)

    @functools.cached_property
    def all_lanes(self) -> frozenset[int]:
        """Devices of all stages."""
        return frozenset().union(*self.lanes.values())

    @functools.cached_property
    def sources(self) -> Mapping[Node, tuple[Node, ...]]:
        """For every stage, the stages that feed it."""
        return {node: tuple(s for s, t in self.edges if t == node) for node in self.lanes}

    @functools.cached_property
    def targets(self) -> Mapping[Node, tuple[Node, ...]]:
        """For every stage, the stages it feeds."""
        return {node: tuple(t for s, t in self.edges if s == node) for node in self.lanes}

    @functools.cached_property
    def places(self) -> Mapping[Node, Place]:
        """For every stage, its place."""
        return {node: (node[0], node[1] % self.pp.get(node[0], node[1] + 1)) for node in self.nodes}

    @functools.cached_property
    def chunks(self) -> Mapping[Place, tuple[Node, ...]]:
        """For every place, its stages in chain order."""
        found: dict[Place, tuple[Node, ...]] = {}
        for node, place in self.places.items():
            found[place] = (*found.get(place, ()), node)
        return found

    @functools.cached_property
    def depths(self) -> Mapping[Node, int]:
        """For every stage, the number of stages on the longest path from a source to it, itself included."""
        return _longest_paths(self.nodes, self.sources.__getitem__)

    @functools.cached_property
    def heights(self) -> Mapping[Node, int]:
        """For every stage, the number of stages on the longest path from it to a sink, itself included."""
        return _longest_paths(self.nodes[::-1], self.targets.__getitem__)

    def with_descendants(self, nodes: frozenset[Node]) -> frozenset[Node]:
        """These stages and all that they feed, directly or through others."""
        reached = set(nodes)
        for node in self.nodes:
            if any(source in reached for source in self.sources[node]):
                reached.add(node)
        return frozenset(reached)


def _longest_paths(order: tuple[Node, ...], before: Callable[[Node], tuple[Node, ...]]) -> dict[Node, int]:
    lengths: dict[Node, int] = {}
    for node in order:
        lengths[node] = 1 + max((lengths[other] for other in before(node)), default=0)
    return lengths


def lane_classes(held: Iterable[frozenset[int]]) -> tuple[tuple[int, ...], ...]:
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
    lanes: dict[Node, frozenset[int]] = {}
    edges: list[Edge] = []
    first: dict[str, Node] = {}
    last: dict[str, Node] = {}
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


def _topological(nodes: tuple[Node, ...], edges: list[Edge]) -> list[Node]:
    """Each stage after those that feed it; otherwise in the order given."""
    number = {node: index for index, node in enumerate(nodes)}
    missing = collections.Counter(target for _, target in edges)
    targets: dict[Node, list[Node]] = collections.defaultdict(list)
    for source, target in edges:
        targets[source].append(target)
    ready = [index for index, node in enumerate(nodes) if not missing[node]]
    order: list[Node] = []
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
