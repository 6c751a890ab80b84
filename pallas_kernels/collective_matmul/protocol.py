"""Who waits for which slot, who fills it and who is told, in the kernels of `mosaic.py`: plain data, no device.

Every rank has a buffer of one slot a rank, and one counter a slot. A slot is filled once, by one peer, and is never
written again, so that nobody has to ask whether it may be overwritten; whoever filled it counts up its counter, and
waiting for that count is the only waiting there is. A counter a slot, not one for all: a rank is many blocks, and a
block that has run ahead may count for its next slot while another has not yet written this one.

Both collectives are written as one rank sees them, in places on from its own around the ring of ranks:

- all-gather: multiply the chunk at hand while sending it on to the rank before, n - 1 times; then the last one.
- reduce-scatter: multiply the chunk of each other rank straight into that rank's slot, the own chunk last; then wait
  until every slot is full.

`walk` carries out either on anything that can wait, multiply and tell: a warpgroup of a kernel, a core of an
interpreter, a recorder in a test. All of them therefore run the same order.
"""

import dataclasses
from typing import Any, Protocol, runtime_checkable


@dataclasses.dataclass(frozen=True)
class ProtocolStep:
    """One chunk's matmul. All places are counted in ranks on from one's own.

    Attributes:
        chunk: Which chunk is multiplied.
        waits: It lies in the own slot of that number, which a peer fills. Otherwise it was here before the kernel.
        to: Whose slot is filled meanwhile; 0 is the own one, which nobody has to be told of; None: nobody's.
        slot: Which slot there, counted from oneself.
    """

    chunk: int
    waits: bool
    target: int | None
    slot: int


@dataclasses.dataclass(frozen=True)
class ProtocolProgram:
    """What every rank does: `steps` in order, then waiting for the slots `awaited` (counted like the steps')."""

    ranks: int
    steps: tuple[ProtocolStep, ...]
    awaited: tuple[int, ...]


def all_gather_protocol(ranks: int) -> ProtocolProgram:
    """Chunks travel around the ring, each kept in the slot of its owner's number."""
    before = ranks - 1
    steps = tuple(
        ProtocolStep(chunk, waits=chunk > 0, target=before if chunk < ranks - 1 else None, slot=chunk)
        for chunk in range(ranks)
    )
    return ProtocolProgram(ranks, steps, awaited=())


def reduce_scatter_protocol(ranks: int) -> ProtocolProgram:
    """Partial results go straight to the rank that sums them, each into the slot of its sender's number."""
    steps = tuple(
        ProtocolStep(place % ranks, waits=False, target=place % ranks, slot=0) for place in range(1, ranks + 1)
    )
    return ProtocolProgram(ranks, steps, awaited=tuple(range(1, ranks)))


@runtime_checkable
class ProtocolPort(Protocol):
    """One rank, or one of its blocks, as `walk` drives it. Ranks and slots may be traced."""

    def rank(self, place: int) -> Any:
        """The rank that many places on from this one."""

    def wait(self, slot: Any) -> None:
        """Returns once all that fill this rank's `slot` have told so."""

    def multiply(self, step: ProtocolStep, chunk: Any, to: Any, slot: Any) -> None:
        """Multiplies `chunk`, filling `slot` of rank `to` (None: of nobody)."""

    def tell(self, to: Any, slot: Any) -> None:
        """Counts for `slot` at rank `to`, after this block's part has arrived there."""


def run_protocol(program: ProtocolProgram, port: ProtocolPort) -> None:
    """Carries out a program."""
    for step in program.steps:
        chunk, slot = port.rank(step.chunk), port.rank(step.slot)
        to = None if step.target is None else port.rank(step.target)
        if step.waits:
            port.wait(chunk)
        port.multiply(step, chunk, to, slot)
        if step.target:
            port.tell(to, slot)
    for place in program.awaited:
        port.wait(port.rank(place))
