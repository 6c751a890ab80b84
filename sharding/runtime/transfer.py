"""From any sharding of an array into boxes to any other: equal chunks, sent in the fewest rounds there can be."""

import collections
import dataclasses
import itertools
from collections.abc import Iterable, Sequence

import numpy as np

Box = tuple[tuple[int, int], ...]
"""(start, stop) along every dimension; the empty box is a scalar."""

Index = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Move:
    """One chunk on its way; a device that keeps a chunk sends it to itself.

    Attributes:
        source, target: Devices.
        start: Where the chunk begins in the whole array.
        source_start, target_start: Where it begins in the source's and in the target's box.
    """

    source: int
    target: int
    start: Index
    source_start: Index
    target_start: Index


@dataclasses.dataclass(frozen=True)
class Transfer:
    """A transfer in rounds; in a round every device sends at most one chunk and receives at most one.

    Attributes:
        chunk: Shape of every chunk.
        rounds: The moves of each round.
    """

    chunk: Index
    rounds: tuple[tuple[Move, ...], ...]

    def __post_init__(self) -> None:
        for number, moves in enumerate(self.rounds):
            for side in ("source", "target"):
                devices = [getattr(move, side) for move in moves]
                if len(set(devices)) < len(devices):
                    raise ValueError(f"round {number}: a device is the {side} of two chunks: {devices}")


def plan_transfer(source: Sequence[tuple[int, Box]], target: Sequence[tuple[int, Box]]) -> Transfer:
    """Plans who sends what to whom, and when.

    No boundary of a box, on either side, cuts a chunk. A chunk comes from the device itself where it holds it, else
    from the least busy of its holders. There are as many rounds as the busiest device sends or receives chunks, which
    is the fewest possible (König's theorem: a bipartite multigraph's edges need as many colours as its largest degree).

    Args:
        source: (device, box) of every device that holds a part of the array.
        target: (device, box) of every device that is to hold one.

    Raises ValueError for an empty box, a device named twice on a side, or a chunk that no source holds.
    """
    boxes = [box for _, box in (*source, *target)]
    for side, placed in (("source", source), ("target", target)):
        devices = [device for device, _ in placed]
        if len(set(devices)) < len(devices):
            raise ValueError(f"a device stands twice in the {side}: {devices}")
    if any(start >= stop for box in boxes for start, stop in box):
        raise ValueError("a box is empty; a transfer needs at least one element along every dimension")
    chunk = tuple(int(np.gcd.reduce([edge for box in boxes for edge in box[axis]])) for axis in range(len(boxes[0])))
    moves = _choose_sources(dict(source), dict(target), chunk)
    colours = colour_edges([(move.source, move.target) for move in moves])
    rounds: list[list[Move]] = [[] for _ in range(1 + max(colours))]
    for move, colour in zip(moves, colours, strict=True):
        rounds[colour].append(move)
    return Transfer(chunk, tuple(map(tuple, rounds)))


def _starts(box: Box, chunk: Index) -> Iterable[Index]:
    """Where the chunks of a box begin, the last dimension fastest."""
    return itertools.product(*(range(start, stop, step) for (start, stop), step in zip(box, chunk, strict=True)))


def _choose_sources(source: dict[int, Box], target: dict[int, Box], chunk: Index) -> list[Move]:
    holders: dict[Index, list[int]] = collections.defaultdict(list)
    for device, box in source.items():
        for start in _starts(box, chunk):
            holders[start].append(device)
    wanted = [(start, device) for device, box in target.items() for start in _starts(box, chunk)]
    sent: collections.Counter[int] = collections.Counter(d for start, d in wanted if d in holders[start])

    def move(start: Index, device: int) -> Move:
        if device in holders[start]:
            sender = device
        elif holders[start]:
            sender = min(holders[start], key=sent.__getitem__)
            sent[sender] += 1
        else:
            raise ValueError(f"no source holds the chunk at {start}, which device {device} is to hold")
        return Move(sender, device, start, _offset(start, source[sender]), _offset(start, target[device]))

    return [move(start, device) for start, device in wanted]


def _offset(start: Index, box: Box) -> Index:
    return tuple(first - low for first, (low, _) in zip(start, box, strict=True))


def colour_edges(edges: list[tuple[int, int]]) -> list[int]:
    """Colours the edges (source, target), no two of one colour at a source or at a target, with the fewest colours.

    Each edge takes a colour that is free at both its ends. Where there is none, the two colours free at either end
    are swapped along the path that alternates between them from the target, after which one is free at both.
    """
    degrees = collections.Counter((side, edge[side]) for edge in edges for side in (0, 1))
    count = max(degrees.values())
    at: dict[tuple[int, int], dict[int, int]] = collections.defaultdict(dict)  # (side, device) -> colour -> edge
    colours = [-1] * len(edges)

    def free(end: tuple[int, int]) -> Iterable[int]:
        return (colour for colour in range(count) if colour not in at[end])

    def paint(edge: int, colour: int) -> None:
        colours[edge] = colour
        for side in (0, 1):
            at[side, edges[edge][side]][colour] = edge

    for edge, (source, target) in enumerate(edges):
        both = next((colour for colour in free((0, source)) if colour not in at[1, target]), None)
        if both is None:
            both, other = next(iter(free((0, source)))), next(iter(free((1, target))))
            path, end, colour = [], (1, target), both
            while colour in at[end]:
                path.append(at[end][colour])
                end = (1 - end[0], edges[path[-1]][1 - end[0]])
                colour = other if colour == both else both
            for member in path:
                for side in (0, 1):
                    del at[side, edges[member][side]][colours[member]]
            for member in path:
                paint(member, other if colours[member] == both else both)
        paint(edge, both)
    return colours


def shard_shape(box: Box) -> Index:
    """Shape of a box."""
    return tuple(stop - start for start, stop in box)
