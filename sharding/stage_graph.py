"""The acyclic graph of pipeline stages that a plan makes of a graph of modules."""

import dataclasses
import functools
from collections.abc import Callable, Mapping

from sharding.plan import Plan, PlanError, stage_layers
from sharding.specs import ModuleGraph

Node = tuple[str, int]
"""A stage: (unit, number of the stage in it)."""

Edge = tuple[Node, Node]


@dataclasses.dataclass(frozen=True)
class StageGraph:
    """Stages, the devices each holds, and who feeds whom.

    Attributes:
        lanes: Devices of every stage; stages in topological order.
        edges: Pairs (feeding stage, fed stage).
    """

    lanes: Mapping[Node, frozenset[int]]
    edges: tuple[Edge, ...]

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

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All stages, each after those that feed it."""
        return tuple(self.lanes)

    @property
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
        for stage, runs in enumerate(stage_layers(unit, graph)):
            node = (unit.name, stage)
            lanes[node] = frozenset(unit.stage_devices(stage))
            if stage:
                edges.append(((unit.name, stage - 1), node))
            for module, _, _ in runs:
                first.setdefault(module, node)
                last[module] = node
    edges += [(last[source], first[target]) for source, target in graph.edges if last[source] != first[target]]
    edges = list(dict.fromkeys(edges))
    order = _topological(tuple(lanes), edges)
    return StageGraph({node: lanes[node] for node in order}, tuple(edges))


def _topological(nodes: tuple[Node, ...], edges: list[Edge]) -> list[Node]:
    """Each stage after those that feed it; otherwise in the order given."""
    order: list[Node] = []
    while len(order) < len(nodes):
        ready = [n for n in nodes if n not in order and all(s in order for s, t in edges if t == n)]
        if not ready:
            rest = ", ".join(f"{unit} {stage}" for unit, stage in nodes if (unit, stage) not in order)
            raise PlanError(f"the stages {rest} wait for each other; put modules that enclose another in other units")
        order.append(ready[0])
    return order
