"""The status that a process writes with each heartbeat.

The heartbeat of each process writes it, and the heartbeat of process 0 judges it.
"""

import dataclasses
import json
import socket
from typing import Any, Literal, get_args

from configs.common.errors import UserError
from configs.common.strict_json import parse_record

Phase = Literal[
    "starting",
    "restoring",
    "checking communication",
    "initializing",
    "compiling",
    "training",
    "saving",
    "evaluating",
    "idle",
    "ended",
]
LONGEST_STATUS = 4000
"""Largest number of characters of a text that is read as a status."""

LONGEST_FAILURE = 300
"""Largest number of characters of an error that other processes repeat."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProcessStatus:
    """The status of a process.

    Attributes:
        host: Name of its host.
        phase: Its current work; `idle` between the calls of a program that uses a trainer, `ended` in its last status.
        step: Number of steps that it has dispatched.
        beat: Number of the heartbeat; an unchanged number is no sign of life.
        op: The op that it waits for or dispatches, in words; empty where it does neither.
        idle: Seconds since it last finished a step, a program, a batch or a phase.
        failure: The error that ends it, in one line; empty while it runs.
        digests: Digests of the losses, norms and token counts of its steps (`StepDigests`), by step.
        window: Means over its last window of steps, in seconds by phase of a step, and the window's last step, `step`.
    """

    host: str
    phase: Phase
    step: int
    beat: int
    op: str = ""
    idle: float = 0.0
    failure: str = ""
    digests: dict[str, str] = dataclasses.field(default_factory=dict)
    window: dict[str, float] = dataclasses.field(default_factory=dict)

    @classmethod
    def of_this_process(cls, phase: Phase, step: int, beat: int, **more: Any) -> "ProcessStatus":
        """Makes the status of this process on this host; `more` are the other fields."""
        return cls(host=socket.gethostname(), phase=phase, step=step, beat=beat, **more)

    def to_json(self) -> str:
        """Serialises the status for the other processes."""
        return json.dumps(dataclasses.asdict(self))

    def __str__(self) -> str:
        waiting = f", waiting for {self.op}" if self.op else ""
        return f"on {self.host}, {self.phase} after step {self.step}{waiting}"


_TYPES = {
    "host": str,
    "phase": str,
    "step": int,
    "beat": int,
    "op": str,
    "idle": float,
    "failure": str,
    "digests": dict,
    "window": dict,
}


def parse_status(text: str) -> ProcessStatus | None:
    """Parses the status that a text holds; None for every other text."""
    if len(text) > LONGEST_STATUS:
        return None
    try:
        fields = parse_record(text, "the status", _TYPES)
    except UserError:
        return None
    if not all(type(digest) is str for digest in fields["digests"].values()):
        return None
    if not all(type(value) is float for value in fields["window"].values()):
        return None
    return ProcessStatus(**fields) if fields["phase"] in get_args(Phase) else None
