"""What a process says of itself with each heartbeat."""

import dataclasses
import json
import socket
from typing import Literal, get_args

from configs.errors import UserError
from configs.strict_json import parse_json

Phase = Literal["compiling", "training", "saving", "evaluating", "ended"]
LONGEST_STATUS = 1000
"""Characters of the longest text that is read as a status."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProcessStatus:
    """What a process does.

    Attributes:
        host: Name of its host.
        phase: What it does; `ended` is the last word of a process that is done.
        step: Steps that it has dispatched.
        beat: Number of the heartbeat: one that stays the same is no sign of life.
    """

    host: str
    phase: Phase
    step: int
    beat: int

    @classmethod
    def of_this_process(cls, phase: Phase, step: int, beat: int) -> "ProcessStatus":
        """The status of this process on this host."""
        return cls(host=socket.gethostname(), phase=phase, step=step, beat=beat)

    def to_json(self) -> str:
        """As text for the other processes."""
        return json.dumps(dataclasses.asdict(self))

    def __str__(self) -> str:
        return f"on {self.host}, {self.phase} after step {self.step}"


def parse_status(text: str) -> ProcessStatus | None:
    """The status that a text holds; None for every other text."""
    if len(text) > LONGEST_STATUS:
        return None
    try:
        fields = parse_json(text, "the status")
    except UserError:
        return None
    types = {"host": str, "phase": str, "step": int, "beat": int}
    if not isinstance(fields, dict) or {name: type(value) for name, value in fields.items()} != types:
        return None
    return ProcessStatus(**fields) if fields["phase"] in get_args(Phase) else None
