"""Comparing what the processes of a run say of themselves: pure functions of their reports.

`checks.py` calls it in each process with the reports of all.
"""

import collections
import dataclasses
import json
from collections.abc import Mapping

from configs.errors import UserError
from configs.strict_json import parse_record

LONGEST_REPORT = 100_000
"""Characters of the longest text that is read as a report."""

LARGEST_CLOCK_DIFFERENCE = 2.0
"""Seconds by which clocks may differ without a warning: processes leave a barrier within less."""


class DifferentProcessError(UserError):
    """The processes of a run differ in what must be alike; the message says which of them in what."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StartReport:
    """What a process says of itself at the start.

    Attributes:
        host: Name of its host.
        time: Its clock when it left the barrier before the reports, in seconds.
        identity: Texts that must be alike, by name.
        failure: What its device check found wrong; empty if nothing.
    """

    host: str
    time: float
    identity: Mapping[str, str]
    failure: str = ""

    def to_json(self) -> str:
        """As text for the other processes."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str, process: int) -> "StartReport":
        """The report that a text holds. Raises UserError for every other text; names the process."""
        where = f"the start report of process {process}"
        if len(text) > LONGEST_REPORT:
            raise UserError(f"{where} has {len(text)} characters, of at most {LONGEST_REPORT}")
        fields = parse_record(text, where, {"host": str, "time": float, "identity": dict, "failure": str})
        if not all(isinstance(value, str) for value in fields["identity"].values()):
            raise UserError(f"{where} has an identity of other values than texts")
        return cls(**fields)


def describe_differences(reports: Mapping[int, StartReport]) -> str:
    """Which processes differ from most in what, as far as both sides say it; empty if they are alike.

    Args:
        reports: By process.
    """
    names = dict.fromkeys(name for report in reports.values() for name in report.identity)
    said: list[str] = []
    for name in names:
        values = {process: report.identity[name] for process, report in reports.items() if name in report.identity}
        (usual, _), *others = collections.Counter(values.values()).most_common()
        for other, _ in others:
            processes = _name_processes([process for process, value in values.items() if value == other], reports)
            said.append(f"{name} is {other or 'not set'} in {processes}, and {usual or 'not set'} elsewhere")
    return "; ".join(said)


def describe_clocks(reports: Mapping[int, StartReport]) -> str:
    """By how much clocks differ; empty if it is no more than `LARGEST_CLOCK_DIFFERENCE`."""
    earliest, latest = (pick(reports, key=lambda process: reports[process].time) for pick in (min, max))
    difference = reports[latest].time - reports[earliest].time
    if difference <= LARGEST_CLOCK_DIFFERENCE:
        return ""
    return (
        f"the clock of {_name_processes([latest], reports)} is {difference:.0f} s ahead of that of "
        f"{_name_processes([earliest], reports)}: times in logs and file systems do not agree"
    )


def describe_failures(reports: Mapping[int, StartReport]) -> str:
    """Which processes failed their device check, and how; empty if none did."""
    return "; ".join(
        f"{_name_processes([process], reports)}: {report.failure}"
        for process, report in reports.items()
        if report.failure
    )


def _name_processes(processes: list[int], reports: Mapping[int, StartReport]) -> str:
    hosts = ", ".join(dict.fromkeys(reports[process].host for process in processes))
    return f"process {', '.join(map(str, processes))} ({hosts})"
