"""The recurrence on arrays: every node starts when the last node that it waits for has ended."""

import dataclasses
import functools
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int, Num


class NodeTimes(NamedTuple):
    """When nodes started and ended, in seconds from the start of the step.

    Attributes:
        starts: By node.
        ends: By node.
    """

    starts: Float[np.ndarray, " n"]
    ends: Float[np.ndarray, " n"]


class NodeBlock(NamedTuple):
    """Nodes none of which waits for another of them.

    Attributes:
        nodes: The nodes, ascending; a slice where they are consecutive.
        waits: The nodes that each of them waits for, [waits, nodes]; shorter columns are filled with node 0.
    """

    nodes: slice | Int[np.ndarray, " k"]
    waits: Int[np.ndarray, "w k"]

    def latest(self, ends: Num[np.ndarray, "n ..."]) -> Num[np.ndarray, "k ..."]:
        """For each of the nodes, when the last node that it waits for ends."""
        if len(self.waits) == 1:
            return ends.take(self.waits[0], axis=0)
        return np.maximum.reduce(ends.take(self.waits, axis=0), axis=0)


@dataclasses.dataclass(frozen=True, eq=False)
class WaitGraph:
    """An acyclic graph of nodes in topological order.

    Node 0 is the start of the step, at 0 seconds. The others are in blocks, so that a run takes a few NumPy calls for
    each block, however many nodes it has. The result does not depend on how the nodes are divided into blocks: it
    consists of maxima, and one addition for each node.

    Attributes:
        count: Number of nodes, node 0 included.
        blocks: All other nodes in order; each block waits for nodes of blocks before it.
    """

    count: int
    blocks: tuple[NodeBlock, ...]

    def run(self, seconds: Float[np.ndarray, " n"]) -> NodeTimes:
        """The times of all nodes if each takes these seconds."""
        starts, ends = np.zeros(self.count), np.zeros(self.count)
        for block in self.blocks:
            nodes = block.nodes
            starts[nodes] = start = block.latest(ends)
            np.add(start, seconds[nodes], out=ends[nodes])
        return NodeTimes(starts, ends)

    def run_measured(self, released: Float[np.ndarray, " n"], ended: Float[np.ndarray, " n"]) -> NodeTimes:
        """The times of all nodes if none starts before it is released, or ends before it is seen to have ended.

        Args:
            released: Seconds from the start of the step, by node; NaN where a node waits for other nodes alone.
            ended: Seconds at which each node was seen to have ended; NaN where it ends as soon as it has started.
        """
        starts, ends = np.zeros(self.count), np.zeros(self.count)
        for block in self.blocks:
            nodes = block.nodes
            starts[nodes] = start = np.fmax(block.latest(ends), released[nodes])
            np.fmax(start, ended[nodes], out=ends[nodes])
        return NodeTimes(starts, ends)

    def add_starts(self, seconds: Float[np.ndarray, "n b"]) -> Float[np.ndarray, "n b"]:
        """The ends of all nodes in many runs at once, in the place of the seconds that they take.

        Args:
            seconds: By node and run; overwritten.
        """
        seconds[0] = 0.0
        for block in self.blocks:
            seconds[block.nodes] += block.latest(seconds)
        return seconds

    @functools.cached_property
    def last_nodes(self) -> Int[np.ndarray, " e"]:
        """The nodes for which no other waits; the step is over when all of them have ended."""
        is_last = np.ones(self.count, bool)
        for block in self.blocks:
            is_last[block.waits] = False
        return np.flatnonzero(is_last)

    def select(self, nodes: Int[np.ndarray, " c"]) -> tuple[NodeBlock, ...]:
        """Returns blocks of only these nodes, which are ascending."""
        if not len(nodes):
            return ()
        numbers = np.searchsorted(self._first_nodes, nodes, side="right") - 1
        begins = np.flatnonzero(np.diff(numbers, prepend=-1))
        return tuple(
            NodeBlock(chosen, self.blocks[number].waits[:, chosen - self._first_nodes[number]])
            for number, chosen in zip(numbers[begins], np.split(nodes, begins[1:]), strict=True)
        )

    @functools.cached_property
    def _first_nodes(self) -> Int[np.ndarray, " _"]:
        """The first node of every block."""
        return 1 + np.cumsum([0, *(block.waits.shape[1] for block in self.blocks[:-1])])
