"""Makes a `WaitGraph` of ranges of nodes: nodes that wait for nodes of the same other ranges."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from sharding.schedules.recurrence.wait_graph import NodeBlock, WaitGraph

NO_NODE = -1
"""Fills a column of a wait table."""

RangeWait = tuple[int, int]
"""(number of an earlier range, number of the wait table that says which of its nodes are awaited by which)."""


class WaitGraphBuilder:
    """Collects ranges of nodes, each after the nodes that it waits for."""

    def __init__(self) -> None:
        self._sizes: list[int] = []
        self._levels: list[int] = []  # no range waits for another of its level
        self._wait_counts: list[int] = []
        self._awaited: list[int] = []  # of all waits, range by range
        self._tables_of_waits: list[int] = []
        self._tables: list[Int[np.ndarray, "w k"]] = []
        self._table_numbers: dict[tuple[tuple[int, ...], bytes], int] = {}

    def table(self, nodes: Int[np.ndarray, "w k"]) -> int:
        """The number of a wait table; equal tables have one number.

        Args:
            nodes: For each of k nodes, numbers within an awaited range of the nodes it waits for, or `NO_NODE`.
        """
        nodes = np.ascontiguousarray(nodes, np.intp)
        key = (nodes.shape, nodes.tobytes())
        if key not in self._table_numbers:
            self._table_numbers[key] = len(self._tables)
            self._tables.append(nodes)
        return self._table_numbers[key]

    def add(self, size: int, waits: Sequence[RangeWait]) -> int:
        """Adds a range of nodes, and returns its number."""
        levels, level = self._levels, -1  # of what is awaited
        for awaited, table in waits:
            if levels[awaited] > level:
                level = levels[awaited]
            self._awaited.append(awaited)
            self._tables_of_waits.append(table)
        self._wait_counts.append(len(waits))
        self._sizes.append(size)
        levels.append(level + 1)
        return len(levels) - 1

    def size(self, number: int) -> int:
        """Number of nodes of a range."""
        return self._sizes[number]

    def build(self) -> tuple[WaitGraph, Int[np.ndarray, " r"]]:
        """The graph, and the first node of every range; the others of a range follow it."""
        sizes, tables = np.array(self._sizes), np.array(self._tables_of_waits, int)
        ranges = np.repeat(np.arange(len(sizes)), self._wait_counts)  # of each wait
        heights = np.array([len(table) for table in self._tables], int)[tables]
        blocks = _Blocks(sizes, np.array(self._levels), np.bincount(ranges, heights, len(sizes)).astype(int))
        rows = np.cumsum(heights) - heights
        rows -= rows[np.searchsorted(ranges, ranges)]  # in the columns of the range, whose tables are stacked
        places, steps = blocks.places(ranges, rows)
        bases = blocks.first_nodes[np.array(self._awaited, int)]
        waits = np.zeros(blocks.total, np.intp)  # of node 0 where a column is short
        by_table = np.argsort(tables, kind="stable")
        bounds = np.searchsorted(tables[by_table], np.arange(len(self._tables) + 1))
        for number, table in enumerate(self._tables):
            chosen = by_table[bounds[number] : bounds[number + 1]]
            (height, width), is_filled = table.shape, table != NO_NODE
            if width >= _WIDE:  # a copy of every row takes less than an index of every entry
                for wait in chosen.tolist():
                    for row in range(height):
                        begin = places[wait] + row * steps[wait]
                        awaited = np.add(table[row], bases[wait], out=waits[begin : begin + width])
                        awaited *= is_filled[row]
                continue
            chosen = chosen[:, None, None]
            awaited = (bases[chosen] + table) * is_filled
            waits[places[chosen] + steps[chosen] * np.arange(height)[:, None] + np.arange(width)] = awaited
        return WaitGraph(1 + int(sizes.sum()), blocks.split(waits)), blocks.first_nodes


class _Blocks:
    """The order of ranges, by level and then by how many nodes theirs wait for, which are divided into blocks.

    Attributes:
        first_nodes: The first node of every range.
        total: Number of entries of the waits of all blocks.
    """

    def __init__(
        self, sizes: Int[np.ndarray, " r"], levels: Int[np.ndarray, " r"], heights: Int[np.ndarray, " r"]
    ) -> None:
        # Columns are as long as the longest of their block, so nodes that join many others are in blocks of their own.
        keys = levels * 64 + np.where(heights <= _SHORT, 0, np.ceil(np.log2(np.maximum(heights, 1))).astype(int))
        order = np.argsort(keys, kind="stable")
        begins = np.flatnonzero(np.diff(keys[order], prepend=-1))
        self._of_range = np.empty(len(sizes), int)
        self._of_range[order] = np.repeat(np.arange(len(begins)), np.diff(begins, append=len(sizes)))
        self.first_nodes = np.empty(len(sizes), int)
        self.first_nodes[order] = 1 + np.cumsum(sizes[order]) - sizes[order]
        self._counts = np.add.reduceat(sizes[order], begins)  # nodes of each block
        self._first_nodes = 1 + np.cumsum(self._counts) - self._counts
        self._heights = np.maximum(np.maximum.reduceat(heights[order], begins), 1)
        self._ends = np.cumsum(self._heights * self._counts)
        self.total = int(self._ends[-1])

    def places(
        self, ranges: Int[np.ndarray, " w"], rows: Int[np.ndarray, " w"]
    ) -> tuple[Int[np.ndarray, " w"], Int[np.ndarray, " w"]]:
        """Where entries of ranges' first nodes lie among the waits of all blocks, and how far rows are apart there.

        Args:
            ranges: The range of each entry.
            rows: The row of each entry in the columns of its range.
        """
        blocks = self._of_range[ranges]
        steps = self._counts[blocks]
        begins = self._ends[blocks] - self._heights[blocks] * steps
        return begins + rows * steps + self.first_nodes[ranges] - self._first_nodes[blocks], steps

    def split(self, waits: Int[np.ndarray, " t"]) -> tuple[NodeBlock, ...]:
        """Divides the waits of all ranges into blocks."""
        columns = (self._first_nodes, self._counts, self._heights, self._ends)
        return tuple(
            NodeBlock(slice(first, first + count), waits[end - height * count : end].reshape(height, count))
            for first, count, height, end in zip(*(column.tolist() for column in columns), strict=True)
        )


_WIDE = 64
"""Nodes of a range from which its waits are copied one row after the other."""

_SHORT = 4
"""Columns of no more waits share a block."""
