"""The last ops that a process has dispatched, and the one that it waits for.

The executor writes the log, and the heartbeat reports the op at which a run stands still.
"""

import collections
from typing import Protocol, runtime_checkable

from sharding.schedules.ops import PipelineOp


@runtime_checkable
class Mark(Protocol):
    """A small array that an op makes."""

    def is_ready(self) -> bool:
        """Whether the op has been finished."""
        ...


class OpLog:
    """The ops that one thread dispatches, for others to read at any time.

    Only a small array of an op is kept, and of few kinds of ops: keeping activations would raise peak memory.

    Args:
        most: Number of ops that are remembered: the ops of all steps in flight, so that the first unfinished is among
            them.
    """

    def __init__(self, most: int) -> None:
        self._dispatched: collections.deque[tuple[PipelineOp, Mark | None]] = collections.deque(maxlen=most)
        self._current: PipelineOp | None = None

    def begin(self, op: PipelineOp) -> None:
        """Records that the dispatch of an op begins."""
        self._current = op

    def end(self, op: PipelineOp, mark: Mark | None) -> None:
        """Records that the op is dispatched; `mark` is ready when the op is finished."""
        self._dispatched.append((op, mark))
        self._current = None

    def last(self, most: int) -> tuple[PipelineOp, ...]:
        """The last ops dispatched, in order; the last of them perhaps not yet wholly."""
        current = self._current
        ops = [op for op, _ in self._dispatched.copy()]
        return tuple([*ops, *([current] if current else [])][-most:])

    def waits_for(self) -> PipelineOp | None:
        """The first op that is known to be unfinished, else the one that is being dispatched; None without either."""
        current = self._current
        for op, mark in self._dispatched.copy():
            if mark is not None and not mark.is_ready():
                return op
        return current
