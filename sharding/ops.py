"""A schedule as data: parts, ops, their total order, and all that one step has to do."""

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from sharding.stage_graph import Edge, Node, StageGraph


class ScheduleError(ValueError):
    """A schedule that cannot run as it stands, with the op at fault."""


class Part(NamedTuple):
    """One piece of work; a tuple, because a step has tens of thousands that are looked up all the time.

    Attributes:
        kind: Once a microbatch: `forward`, `backward`, `hop` (an activation), `hop_back` (a gradient). Once a step:
            `gather` (compute weights from masters), `share` (a weight from its owner to a borrower), `reduce`
            (gradients over instances), `share_back` (its gradient from borrower to owner), `norm`, `update`.
        unit, stage: Where it runs, or whence it comes; empty and -1 for `norm`, which runs everywhere.
        microbatch: Its number, or -1 for work done once a step.
        target_unit, target_stage: Where a hop or a share goes; empty and -1 for the rest.
    """

    kind: str
    unit: str
    stage: int
    microbatch: int = -1
    target_unit: str = ""
    target_stage: int = -1

    @property
    def node(self) -> Node:
        """(unit, stage)."""
        return (self.unit, self.stage)

    @property
    def target(self) -> Node:
        """(target_unit, target_stage)."""
        return (self.target_unit, self.target_stage)

    def __str__(self) -> str:
        goal = f" -> {self.target_unit} {self.target_stage}" if self.target_unit else ""
        turn = f" of microbatch {self.microbatch}" if self.microbatch >= 0 else ""
        return f"{self.kind} {self.unit} {self.stage}{goal}{turn}"


@dataclasses.dataclass(frozen=True)
class Op:
    """Parts that run as one program, and the devices it holds."""

    parts: tuple[Part, ...]
    lanes: frozenset[int]

    def __post_init__(self) -> None:
        if not self.parts or not self.lanes:
            raise ValueError(f"an op needs parts and devices, not {self.parts} on {set(self.lanes)}")


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Ops in a total order, which every process follows for the ops on its devices."""

    ops: tuple[Op, ...]

    def restricted_to(self, lanes: Iterable[int]) -> "Schedule":
        """The ops that hold at least one of these devices, in the same order."""
        wanted = frozenset(lanes)
        return Schedule(tuple(op for op in self.ops if not wanted.isdisjoint(op.lanes)))


@dataclasses.dataclass(frozen=True)
class Work:
    """All that one pass has to do; what each part waits for follows from it.

    Attributes:
        graph: The stages.
        microbatches: Number of microbatches.
        backward: Stages with a backward.
        trains: Stages with parameters to update; each has a backward.
        shares: Pairs (owner, borrower) of stages with a common parameter. Its gradient returns where both train.
        updates: Whether the pass ends with reductions, the norm and updates (training) or not (evaluation).
    """

    graph: StageGraph
    microbatches: int
    backward: frozenset[Node] = frozenset()
    trains: frozenset[Node] = frozenset()
    shares: tuple[Edge, ...] = ()
    updates: bool = True

    def __post_init__(self) -> None:
        if self.microbatches < 1:
            raise ScheduleError(f"a step of {self.microbatches} microbatches; it must have at least 1")
        known = frozenset(self.graph.nodes)
        named = self.backward | self.trains | {node for share in self.shares for node in share}
        for node in sorted(named - known):
            raise ScheduleError(f"stage {node} is not in the graph; it has {', '.join(map(str, self.graph.nodes))}")
        for node in sorted(self.graph.with_descendants(self.trains) - self.backward):
            raise ScheduleError(f"stage {node} needs a backward: it, or a stage that feeds it, trains")
        for node in sorted(self.graph.with_descendants(self.backward) - self.backward):
            raise ScheduleError(f"stage {node} needs a backward: a stage that feeds it waits for its gradient")
        for owner, borrower in self.shares:
            if owner == borrower:
                raise ScheduleError(f"stage {owner} borrows from itself; share only between two stages")

    @functools.cached_property
    def begin(self) -> tuple[Part, ...]:
        """What comes before the first forward, in order."""
        gathers = [Part("gather", *node) for node in self.graph.nodes]
        return (*gathers, *(Part("share", *o, target_unit=b[0], target_stage=b[1]) for o, b in self.shares))

    @functools.cached_property
    def end(self) -> tuple[Part, ...]:
        """What comes after the last backward, in order."""
        if not self.updates:
            return ()
        trained = [node for node in self.graph.nodes if node in self.trains]
        returned = [(o, b) for o, b in self.shares if o in self.trains and b in self.trains]
        return (
            *(Part("reduce", *node) for node in trained),
            *(Part("share_back", *b, target_unit=o[0], target_stage=o[1]) for o, b in returned),
            Part("norm", "", -1),
            *(Part("update", *node) for node in trained),
        )

    def hops(self, node: Node, microbatch: int) -> tuple[Part, ...]:
        """What follows a stage's forward."""
        return tuple(Part("hop", *node, microbatch, *target) for target in self.graph.targets[node])

    def hops_back(self, node: Node, microbatch: int) -> tuple[Part, ...]:
        """What follows a stage's backward: a gradient to every stage before it that has a backward too."""
        sources = [source for source in self.graph.sources[node] if source in self.backward]
        return tuple(Part("hop_back", *node, microbatch, *source) for source in sources)

    @functools.cached_property
    def needs(self) -> Mapping[Part, tuple[Part, ...]]:
        """Every part of the pass, and the parts that must come before it."""
        graph = self.graph
        needs: dict[Part, tuple[Part, ...]] = {}
        for part in self.begin:
            needs[part] = (Part("gather", *part.node), Part("gather", *part.target)) if part.kind == "share" else ()
        for node in graph.nodes:
            weights = (Part("gather", *node), *(p for p in self.begin if p.kind == "share" and p.target == node))
            for number in range(self.microbatches):
                forward = Part("forward", *node, number)
                arrivals = tuple(Part("hop", *source, number, *node) for source in graph.sources[node])
                needs[forward] = (*weights, *arrivals)
                needs |= dict.fromkeys(self.hops(node, number), (forward,))
                if node in self.backward:
                    backward = Part("backward", *node, number)
                    returns = tuple(Part("hop_back", *target, number, *node) for target in graph.targets[node])
                    needs[backward] = (forward, *returns)
                    needs |= dict.fromkeys(self.hops_back(node, number), (backward,))
        reductions = tuple(part for part in self.end if part.kind in ("reduce", "share_back"))
        for part in self.end:
            if part.kind == "reduce":
                needs[part] = tuple(Part("backward", *part.node, number) for number in range(self.microbatches))
            elif part.kind == "share_back":
                needs[part] = (Part("reduce", *part.node), Part("reduce", *part.target))
            elif part.kind == "norm":
                losses = tuple(Part("forward", *node, n) for node in graph.nodes for n in range(self.microbatches))
                needs[part] = (*reductions, *losses)
            else:
                needs[part] = (Part("norm", "", -1),)
        return needs

    @functools.cached_property
    def _lanes(self) -> Mapping[Edge, frozenset[int]]:
        """The devices an op holds, by the stages at both its ends; made once, because they may be thousands."""
        nowhere = Part("norm", "", -1).target
        lanes = {(node, nowhere): held for node, held in self.graph.lanes.items()}
        for source, target in (*self.graph.edges, *self.shares):
            both = self.graph.lanes[source] | self.graph.lanes[target]
            lanes |= {(source, target): both, (target, source): both}
        return lanes | {(nowhere, nowhere): self.graph.all_lanes}

    def op(self, part: Part) -> Op:
        """An op of one part; a hop or a share holds the devices of both its ends, because they meet in it."""
        return Op((part,), self._lanes[part.node, part.target])
