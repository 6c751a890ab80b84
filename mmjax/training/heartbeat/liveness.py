"""Processes that end a run: processes that give no sign of life, and processes that an error ends.

The heartbeat of process 0 judges the last status of each process by it.
"""

import dataclasses
import json
from collections.abc import Mapping

from configs.common.errors import UserError
from configs.common.strict_json import parse_record
from mmjax.training.heartbeat.process_status import ProcessStatus

MOST_NAMED = 8
"""Largest number of processes that a verdict names."""


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The reason why the run ends.

    Attributes:
        ranks: The processes that are the cause.
        reason: Why they are the cause, in one line.
    """

    ranks: tuple[int, ...]
    reason: str

    def to_json(self) -> str:
        """Serialises the verdict for the other processes."""
        return json.dumps(dataclasses.asdict(self))


def parse_verdict(text: str) -> Verdict | None:
    """Parses the verdict that a text holds; None for every other text."""
    try:
        fields = parse_record(text, "the verdict", {"ranks": list, "reason": str})
    except UserError:
        return None
    ranks = fields["ranks"]
    return Verdict(tuple(ranks), fields["reason"]) if all(type(rank) is int for rank in ranks) else None


@dataclasses.dataclass(frozen=True)
class _LastSign:
    time: float
    status: ProcessStatus


class Liveness:
    """Remembers when each process gave its last sign of life. Times are passed in: seconds of any clock.

    A process that never gave one is not judged: it may not have opened its trainer yet.

    Args:
        patience: Seconds without a sign of life after which a process counts as lost.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._last: dict[int, _LastSign] = {}

    def update(self, statuses: Mapping[int, ProcessStatus], now: float) -> None:
        """Takes the newest status of each process by rank; a status that was known before is no sign of life."""
        for rank, status in statuses.items():
            if rank not in self._last or status != self._last[rank].status:
                self._last[rank] = _LastSign(now, status)

    def verdict(self, now: float) -> Verdict | None:
        """Names the processes that have failed or have given no sign of life for too long; None if there is none.

        Failures come first: a process that has failed may be gone since.
        """
        failed = {rank: sign for rank, sign in sorted(self._last.items()) if sign.status.failure}
        if failed:
            return _name({rank: describe_failure(rank, sign.status) for rank, sign in failed.items()})
        return _name(
            {
                rank: describe_loss(rank, sign.status, now - sign.time)
                for rank, sign in sorted(self._last.items())
                if now - sign.time > self._patience and sign.status.phase != "ended"
            }
        )


def _name(causes: Mapping[int, str]) -> Verdict | None:
    if not causes:
        return None
    named = list(causes.values())[:MOST_NAMED]
    more = len(causes) - len(named)
    return Verdict(tuple(causes), "; ".join(named) + (f"; and {more} more" if more else ""))


def describe_process(rank: int, status: ProcessStatus | None) -> str:
    """Names a process and its last known activity."""
    return f"process {rank} ({status})" if status else f"process {rank}"


def describe_loss(rank: int, status: ProcessStatus | None, silence: float) -> str:
    """Names a lost process and its last known activity."""
    return f"{describe_process(rank, status)} has given no sign of life for {silence:.0f} s"


def describe_failure(rank: int, status: ProcessStatus) -> str:
    """Names a process that an error ends, and the error."""
    return f"{describe_process(rank, status)} failed: {status.failure}"
