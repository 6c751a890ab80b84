"""Which processes of a run still give signs of life."""

import dataclasses
from collections.abc import Mapping

from mmjax.training.heartbeat.process_status import ProcessStatus


@dataclasses.dataclass(frozen=True)
class _LastSign:
    time: float
    status: ProcessStatus


class Liveness:
    """Remembers when each process gave its last sign of life. Times are passed in: seconds of any clock.

    A process that never gave one is not judged: it may still read data or restore a checkpoint.

    Args:
        patience: Seconds without a sign of life after which a process counts as lost.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._last: dict[int, _LastSign] = {}

    def update(self, statuses: Mapping[int, ProcessStatus], now: float) -> None:
        """Takes the newest status of each process by rank; one that was known before is no sign of life."""
        for rank, status in statuses.items():
            if rank not in self._last or status != self._last[rank].status:
                self._last[rank] = _LastSign(now, status)

    def lost(self, now: float) -> str:
        """Names the processes that have given no sign of life for too long, in one line; empty if there is none."""
        return "; ".join(
            describe_loss(rank, sign.status, now - sign.time)
            for rank, sign in sorted(self._last.items())
            if now - sign.time > self._patience and sign.status.phase != "ended"
        )


def describe_loss(rank: int, status: ProcessStatus | None, silence: float) -> str:
    """Names a process that is lost, and what it did last."""
    last = f" ({status})" if status else ""
    return f"process {rank}{last} has given no sign of life for {silence:.0f} s"
