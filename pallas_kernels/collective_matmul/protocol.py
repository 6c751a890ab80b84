"""The communication protocol of the Hopper kernels: which rank fills which slot, and what waits for it. Plain data.

Every rank has a buffer of one slot for each rank, and one counter for each slot. A slot is filled once, by one peer,
and never written again, so that no rank has to ask whether it may be overwritten. The peer that filled it increments
its counter, and waiting for that count is the only waiting there is. There is a counter for each slot, not one for all,
because a rank is many blocks: a block that has run ahead may count for its next slot while another block has not yet
written this one.

Both collectives are written for one rank, with ranks counted from its own around the ring:

- all-gather: multiply the local chunk while sending it on to the previous rank, n - 1 times; then multiply the last.
- reduce-scatter: multiply the chunk of each other rank straight into that rank's slot, the own chunk last; then wait
  until every slot is full.

`run_protocol` runs either on anything that can wait, multiply and notify: a warpgroup of a kernel, a core of an
interpreter, a recorder in a test. All of them therefore follow the same order.
"""

import dataclasses
from typing import Any, Protocol, runtime_checkable


@dataclasses.dataclass(frozen=True)
class ProtocolStep:
    """The matmul of one chunk. All numbers are offsets in ranks from the rank that runs the step.

    Attributes:
        chunk: Which chunk is multiplied.
        waits: Whether the chunk is in the slot of that number, which a peer fills; otherwise it was there before the
            kernel.
        target: The rank whose slot is filled meanwhile; 0 is this rank, which needs no notification; None: none.
        slot: Which slot of that rank.
    """

    chunk: int
    waits: bool
    target: int | None
    slot: int


@dataclasses.dataclass(frozen=True)
class ProtocolProgram:
    """The steps of every rank.

    Attributes:
        ranks: Number of ranks.
        steps: The steps in order.
        awaited: Slots to wait for after the steps, as offsets in ranks.
    """

    ranks: int
    steps: tuple[ProtocolStep, ...]
    awaited: tuple[int, ...]


def all_gather_protocol(ranks: int) -> ProtocolProgram:
    """Chunks are sent around the ring; each is kept in the slot of the rank it comes from."""
    previous = ranks - 1
    steps = tuple(
        ProtocolStep(chunk, waits=chunk > 0, target=previous if chunk < ranks - 1 else None, slot=chunk)
        for chunk in range(ranks)
    )
    return ProtocolProgram(ranks, steps, awaited=())


def reduce_scatter_protocol(ranks: int) -> ProtocolProgram:
    """Partial results go straight to the rank that sums them, each into the slot of the rank that sends it."""
    steps = tuple(
        ProtocolStep(offset % ranks, waits=False, target=offset % ranks, slot=0) for offset in range(1, ranks + 1)
    )
    return ProtocolProgram(ranks, steps, awaited=tuple(range(1, ranks)))


@runtime_checkable
class ProtocolPort(Protocol):
    """One rank, or one of its blocks, as `run_protocol` drives it. Ranks and slots may be traced."""

    def rank(self, offset: int) -> Any:
        """The rank at an offset from this one."""

    def wait(self, slot: Any) -> None:
        """Returns once all blocks that fill this rank's `slot` have notified it."""

    def multiply(self, step: ProtocolStep, chunk: Any, target: Any, slot: Any) -> None:
        """Multiplies `chunk` and fills `slot` of the rank `target`, if that is not None."""

    def notify(self, target: Any, slot: Any) -> None:
        """Increments the counter of `slot` at the rank `target`, after this block's piece has arrived there."""


def run_protocol(program: ProtocolProgram, port: ProtocolPort) -> None:
    """Runs a program on a port."""
    for step in program.steps:
        chunk, slot = port.rank(step.chunk), port.rank(step.slot)
        target = None if step.target is None else port.rank(step.target)
        if step.waits:
            port.wait(chunk)
        port.multiply(step, chunk, target, slot)
        if step.target:
            port.notify(target, slot)
    for slot in program.awaited:
        port.wait(port.rank(slot))
