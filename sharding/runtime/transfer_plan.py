"""How an array gets from any sharding into boxes to any other: equal chunks, sent in the fewest possible rounds.

Plain Python and NumPy; devices are numbers. `PermuteHop` carries out the rounds.
"""

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
    """One chunk sent from one device to another; a device that keeps a chunk sends it to itself.

    Attributes:
        source, target: Devices.
        start: First index of the chunk in the whole array.
        source_start, target_start: First index of the chunk in the source's and in the target's box.
    """

    source: int
    target: int
    start: Index
    source_start: Index
    target_start: Index


@dataclasses.dataclass(frozen=True)
class Transfer:
    """A transfer in rounds, in each of which every device sends at most one chunk and receives at most one.

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
    """Decides which device sends which chunk to which other, and in which round.

    Chunks are as large as they can be without any box boundary, on either side, cutting one. A chunk comes from the
    device itself where it holds it, else from the least busy of its holders. There are as many rounds as the busiest
    device sends or receives chunks, which is the fewest possible (König's theorem: the edges of a bipartite multigraph
    need as many colours as its largest degree).

    Args:
        source: (device, box) of every device that holds a shard of the array.
        target: (device, box) of every device that is to hold one.

    Raises:
        ValueError: A box is empty, a device is named twice on one side, or no source holds a chunk.
    """
    boxes = [box for _, box in (*source, *target)]
    for side, placed in (("source", source), ("target", target)):
        devices = [device for device, _ in placed]
        if len(set(devices)) < len(devices):
            raise ValueError(f"a device is named twice in the {side}: {devices}")
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
    """First indices of the chunks of a box, the last dimension fastest."""
    return itertools.product(*(range(start, stop, step) for (start, stop), step in zip(box, chunk, strict=True)))


def _choose_sources(source: dict[int, Box], target: dict[int, Box], chunk: Index) -> list[Move]:
    holders: dict[Index, list[int]] = collections.defaultdict(list)
    for device, box in source.items():
        for start in _starts(box, chunk):
            holders[start].append(device)
    deliveries = [(start, device) for device, box in target.items() for start in _starts(box, chunk)]
    sent: collections.Counter[int] = collections.Counter(
        device for start, device in deliveries if device in holders[start]
    )

    def move(start: Index, device: int) -> Move:
        if device in holders[start]:
            sender = device
        elif holders[start]:
            sender = min(holders[start], key=sent.__getitem__)
            sent[sender] += 1
        else:
            raise ValueError(f"no source holds the chunk at {start}, which device {device} is to hold")
        return Move(sender, device, start, _offset(start, source[sender]), _offset(start, target[device]))

    return [move(start, device) for start, device in deliveries]


def _offset(start: Index, box: Box) -> Index:
    return tuple(first - low for first, (low, _) in zip(start, box, strict=True))


def colour_edges(edges: list[tuple[int, int]]) -> list[int]:
    """Edge colouring of a bipartite multigraph: no two edges of one colour meet, with the fewest colours.

    Each edge takes a colour that is free at both its ends. Where there is none, a colour free at the source and one
    free at the target are swapped along the path from the target that alternates between them, which frees one at both.

    Args:
        edges: (source, target) of every edge.

    Returns:
        The colour of every edge, from 0.
    """
    degrees = collections.Counter((side, ends[side]) for ends in edges for side in (0, 1))
    count = max(degrees.values())
    edge_at: dict[tuple[int, int], dict[int, int]] = collections.defaultdict(dict)  # (side, device) -> colour -> edge
    colours = [-1] * len(edges)

    def free(end: tuple[int, int]) -> Iterable[int]:
        return (colour for colour in range(count) if colour not in edge_at[end])

    def paint(edge: int, colour: int) -> None:
        colours[edge] = colour
        for side in (0, 1):
            edge_at[side, edges[edge][side]][colour] = edge

    for edge, (source, target) in enumerate(edges):
        chosen = next((colour for colour in free((0, source)) if colour not in edge_at[1, target]), None)
        if chosen is None:
            chosen, other = next(iter(free((0, source)))), next(iter(free((1, target))))
            path, end, colour = [], (1, target), chosen
            while colour in edge_at[end]:
                path.append(edge_at[end][colour])
                end = (1 - end[0], edges[path[-1]][1 - end[0]])
                colour = other if colour == chosen else chosen
            for path_edge in path:
                for side in (0, 1):
                    del edge_at[side, edges[path_edge][side]][colours[path_edge]]
            for path_edge in path:
                paint(path_edge, other if colours[path_edge] == chosen else chosen)
        paint(edge, chosen)
    return colours
