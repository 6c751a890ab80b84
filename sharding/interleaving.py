"""Interleaved 1F1B (Narayanan et al., arXiv 2104.04473, section 2.2) over graphs of units with any number of chunks.

A place runs its forwards in groups of pp microbatches: the group through its first chunk, then through its second,
and so on; its backwards go the other way. A unit without chunks has one stage a place, as in plain 1F1B.
"""

import itertools

from sharding.list_scheduling import Key, list_schedule
from sharding.ops import Part, Schedule, Work
from sharding.stage_graph import Node, Place


def interleaved(work: Work) -> Schedule:
    """1F1B over places with chunks; on a chain, where pp divides the microbatches, exactly the paper's order.

    Where pp divides them, places keep strictly to their turns. Elsewhere a last group that is too small would make
    them wait for each other, so they take what is ready: forwards as far as they may, then backwards.
    """
    graph, bounds = work.graph, interleaved_bounds(work)
    strict = {
        place: turns(work, place, bounds[place] - 1)
        for place in graph.chunks
        if place[0] in graph.pp and work.microbatches % graph.pp[place[0]] == 0
    }
    return list_schedule(work, bounds, _by_group(work), strict)


def _by_group(work: Work) -> Key:
    """Forwards first; then the lowest group; in it forwards of the first and backwards of the last chunk first."""
    graph = work.graph
    widest = max(graph.pp.values(), default=1)  # a unit without chunks moves at the pace of those with chunks

    def key(part: Part) -> tuple[bool, int, int, int, int]:
        back = part.kind == "backward"
        group = part.microbatch - part.microbatch % graph.pp.get(part.unit, widest)
        chunk = part.stage // graph.pp.get(part.unit, part.stage + 1)
        return (back, group, -chunk if back else chunk, part.microbatch, -graph.depths[part.node])

    return key


def turns(work: Work, place: Place, warm_up: int) -> list[Part]:
    """All forwards and backwards of a place: forwards of warm-up, then forward and backward by turns, then the rest."""
    size = work.graph.pp.get(place[0], 1)
    groups = [range(first, min(first + size, work.microbatches)) for first in range(0, work.microbatches, size)]
    nodes = work.graph.chunks[place]
    forwards = [Part("forward", *node, number) for group in groups for node in nodes for number in group]
    backwards = [Part("backward", *node, number) for group in groups for node in reversed(nodes) for number in group]
    pairs = itertools.zip_longest(forwards[warm_up:], backwards)
    ordered = (*forwards[:warm_up], *(part for pair in pairs for part in pair if part))
    return [part for part in ordered if part.kind == "forward" or part.node in work.backward]


def interleaved_bounds(work: Work) -> dict[Place, int]:
    """How many microbatches a place may hold; one that is in several of its chunks counts in each.

    A place with v > 1 chunks holds what it can run from its first forward until its first backward, of its last
    chunk, can be there: the stages from its first chunk to the farthest sink, and back to its last. On a chain of p
    places that is the paper's 2(p - rank - 1) + (v - 1)p forwards of warm-up and one more; behind a generator the
    way is longer. A stage of a unit without chunks holds one microbatch more than those behind it need at once,
    which is 1F1B's bound where there are no chunks at all.
    """
    graph = work.graph
    bounds: dict[Place, int] = {}
    most: dict[Node, int] = {}
    for node in reversed(graph.nodes):
        place = graph.places[node]
        chunks = graph.chunks[place]
        if len(chunks) == 1:
            bounds[place] = most[node] = 1 + max((most[target] for target in graph.targets[node]), default=0)
        else:
            bounds[place] = graph.heights[chunks[0]] + graph.heights[chunks[-1]] - 1
            most[node] = _most_in_chunk(bounds[place], graph.pp[node[0]], len(chunks), chunks.index(node))
    return bounds


def _most_in_chunk(bound: int, pp: int, chunks: int, chunk: int) -> int:
    """Microbatches that one chunk holds at most while its place holds `bound` in all.

    That is so right before its first backward, when the later chunks have been through a group's backwards each: the
    place has then run `bound` forwards and as many as those.
    """
    groups, rest = divmod(bound + (chunks - 1 - chunk) * pp, chunks * pp)
    return groups * pp + min(max(rest - chunk * pp, 0), pp)
