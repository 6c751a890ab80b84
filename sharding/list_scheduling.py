"""List scheduling in slots of equal length: in each slot every free stage takes the best op that is ready."""

import collections
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from sharding.ops import Op, Part, Schedule, ScheduleError, Work
from sharding.stage_graph import Node, Place, lane_classes

Key = Callable[[Part], tuple[Any, ...]]
"""Of a forward or backward; the least is the most urgent. It grows with the microbatch in every stage."""


class InFlight:
    """How many microbatches every place holds at a moment; one that is in several chunks of a place counts in each.

    A stage with a backward holds the residuals of a microbatch from its forward to its backward. A stage without one
    holds its output until every stage it feeds has taken it.
    """

    def __init__(self, work: Work) -> None:
        self._work = work
        self._forwards = dict.fromkeys(work.graph.nodes, 0)
        self._backwards = dict.fromkeys(work.graph.nodes, 0)
        self._held = dict.fromkeys(work.graph.nodes, 0)
        self._total = dict.fromkeys(work.graph.chunks, 0)

    def count(self, part: Part) -> None:
        """A forward or backward has run; other kinds change nothing."""
        if part.kind == "forward":
            self._forwards[part.node] += 1
            for source in self._work.graph.sources[part.node]:
                self._weigh(source)
        elif part.kind == "backward":
            self._backwards[part.node] += 1
        else:
            return
        self._weigh(part.node)

    def _weigh(self, node: Node) -> None:
        done = self._forwards[node]
        if node in self._work.backward:
            held = done - self._backwards[node]
        else:
            held = done - min((self._forwards[target] for target in self._work.graph.targets[node]), default=done)
        self._total[self._work.graph.places[node]] += held - self._held[node]
        self._held[node] = held

    def __getitem__(self, place: Place) -> int:
        return self._total[place]

    def is_oldest(self, microbatch: int) -> bool:
        """Whether every stage is done with all the microbatches before this one."""
        backward = self._work.backward
        return all(
            (self._backwards if node in backward else self._forwards)[node] >= microbatch
            for node in self._work.graph.nodes
        )


def list_schedule(
    work: Work, bounds: Mapping[Place, int], key: Key, turns: Mapping[Place, Sequence[Part]] | None = None
) -> Schedule:
    """Orders all the work of a pass.

    In each slot, ready ops are taken in the order of their keys; an op needs all its devices free. Hops follow right
    behind their producer and take no slot. A place that holds as many microbatches as it may starts no forward. Where
    turns and bounds let nothing go on, the oldest microbatch under way does: all that it waits for is its own.

    Args:
        work: What is to be done.
        bounds: How many microbatches each place may hold at once; at least 1.
        key: Which ops come first.
        turns: Of some places, all forwards and backwards in the order that they keep, even if that leaves slots empty.
    """
    for place in work.graph.chunks:
        if bounds[place] < 1:
            raise ScheduleError(f"stage {place} may hold {bounds[place]} microbatches; it must hold at least 1")
    front, held, lanes, places = _Front(work, key), InFlight(work), _lane_bits(work), work.graph.places
    rest = {place: collections.deque(parts) for place, parts in (turns or {}).items()}
    order: list[Op] = []

    def run(parts: Iterable[Part]) -> None:
        for part in parts:
            order.append(work.op(part))
            front.finish(part)

    def may_run(part: Part) -> bool:
        place = places[part.node]
        in_turn = place not in rest or rest[place][0] == part
        return in_turn and (part.kind == "backward" or held[place] < bounds[place])

    def take(allowed: Callable[[Part], bool]) -> list[Part]:
        busy, taken = 0, []
        for part in front:
            if not busy & lanes[part.node] and allowed(part):
                busy |= lanes[part.node]
                taken.append(part)
        return taken

    run(work.begin)
    while front:
        for part in take(may_run) or take(lambda part: held.is_oldest(part.microbatch)):
            hops = work.hops if part.kind == "forward" else work.hops_back
            run((part, *hops(part.node, part.microbatch)))
            held.count(part)
            if places[part.node] in rest:
                rest[places[part.node]].remove(part)
    return Schedule((*order, *(work.op(part) for part in work.end)))


class _Front:
    """The forwards and backwards that have all they need: the first of each stage and kind, the most urgent first."""

    def __init__(self, work: Work, key: Key) -> None:
        self._key = key
        self._number = {node: number for number, node in enumerate(work.graph.nodes)}
        self._missing = {part: len(needs) for part, needs in work.needs.items()}
        self._followers: dict[Part, list[Part]] = collections.defaultdict(list)
        for part, needs in work.needs.items():
            for need in needs:
                self._followers[need].append(part)
        # Microbatches go through a stage in order, so they become ready in order.
        self._ready: dict[tuple[str, Node], collections.deque[Part]] = collections.defaultdict(collections.deque)
        self._heads: dict[tuple[str, Node], tuple[tuple[Any, ...], int, Part]] = {}
        self._left = work.microbatches * (len(work.graph.nodes) + len(work.backward))

    def __len__(self) -> int:
        """How many forwards and backwards have not run."""
        return self._left

    def __iter__(self) -> Iterator[Part]:
        return (part for _, _, part in sorted(self._heads.values()))

    def finish(self, part: Part) -> None:
        """A part has run; a forward or backward that waited for nothing else is ready."""
        if part.kind in ("forward", "backward"):
            self._left -= 1
            self._ready[part.kind, part.node].popleft()
            self._show(part.kind, part.node)
        for follower in self._followers[part]:
            self._missing[follower] -= 1
            if not self._missing[follower] and follower.kind in ("forward", "backward"):
                self._ready[follower.kind, follower.node].append(follower)
                self._show(follower.kind, follower.node)

    def _show(self, kind: str, node: Node) -> None:
        ready = self._ready[kind, node]
        if ready:
            self._heads[kind, node] = (self._key(ready[0]), self._number[node], ready[0])
        else:
            del self._heads[kind, node]


def _lane_bits(work: Work) -> dict[Node, int]:
    """The devices of every stage as bits of a number, one bit for each class of devices in the same stages."""
    lanes = work.graph.lanes
    classes = lane_classes(lanes.values())
    return {node: sum(1 << bit for bit, members in enumerate(classes) if members[0] in lanes[node]) for node in lanes}
