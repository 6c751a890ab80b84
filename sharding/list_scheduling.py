"""List scheduling in slots of equal length: in each slot every free stage takes the best op that is ready."""

from collections.abc import Mapping

from sharding.ops import Op, Part, Schedule, ScheduleError, Work
from sharding.stage_graph import Node


class InFlight:
    """How many microbatches every stage holds at a moment.

    A stage with a backward holds the residuals of a microbatch from its forward to its backward. A stage without one
    holds its output until every stage it feeds has taken it.
    """

    def __init__(self, work: Work) -> None:
        self._work = work
        self._forwards = dict.fromkeys(work.graph.nodes, 0)
        self._backwards = dict.fromkeys(work.graph.nodes, 0)

    def count(self, part: Part) -> None:
        """A forward or backward has run; other kinds change nothing."""
        if part.kind == "forward":
            self._forwards[part.node] += 1
        elif part.kind == "backward":
            self._backwards[part.node] += 1

    def __getitem__(self, node: Node) -> int:
        if node in self._work.backward:
            return self._forwards[node] - self._backwards[node]
        taken = [self._forwards[target] for target in self._work.graph.targets[node]]
        return self._forwards[node] - min(taken, default=self._forwards[node])


def list_schedule(work: Work, bounds: Mapping[Node, int], forwards_first: bool) -> Schedule:
    """Orders all the work of a pass.

    In each slot, ready ops are taken backward first, then by lowest microbatch, then deepest stage; an op needs all
    its devices free. Hops follow right behind their producer and take no slot.

    Args:
        work: What is to be done.
        bounds: How many microbatches each stage may hold at once; at least 1.
        forwards_first: Whether a stage runs all its forwards before its first backward.
    """
    for node in work.graph.nodes:
        if bounds[node] < 1:
            raise ScheduleError(f"stage {node} may hold {bounds[node]} microbatches; it must hold at least 1")
    order: list[Op] = [work.op(part) for part in work.begin]
    done: set[Part] = set(work.begin)
    held = InFlight(work)
    # Microbatches go through a stage in order, so only the next of each kind can be ready.
    waiting = {("forward", node): 0 for node in work.graph.nodes}
    waiting |= {("backward", node): 0 for node in work.graph.nodes if node in work.backward}

    def ready(kind: str, node: Node, number: int) -> bool:
        if kind == "forward" and held[node] >= bounds[node]:
            return False
        if (
            kind == "backward"
            and forwards_first
            and waiting.get(("forward", node), work.microbatches) < work.microbatches
        ):
            return False
        return done.issuperset(work.needs[Part(kind, *node, number)])

    while waiting:
        candidates = sorted(
            (Part(kind, *node, number) for (kind, node), number in waiting.items() if ready(kind, node, number)),
            key=lambda part: (part.kind != "backward", part.microbatch, -work.graph.depths[part.node]),
        )
        if not candidates:
            raise ScheduleError(f"no stage can go on; waiting are {waiting}")
        busy: set[int] = set()
        taken: list[Part] = []
        for part in candidates:
            lanes = work.graph.lanes[part.node]
            if busy.isdisjoint(lanes):
                busy |= lanes
                taken.append(part)
        for part in taken:
            hops = work.hops if part.kind == "forward" else work.hops_back
            parts = (part, *hops(part.node, part.microbatch))
            order += [work.op(one) for one in parts]
            done.update(parts)
            held.count(part)
            key = (part.kind, part.node)
            waiting[key] += 1
            if waiting[key] == work.microbatches:
                del waiting[key]
    return Schedule((*order, *(work.op(part) for part in work.end)))
