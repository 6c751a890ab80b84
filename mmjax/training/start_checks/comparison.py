"""Comparison of the start reports of a run's processes, by pure functions.

`checks.py` calls it in each process with the reports of all.
"""

import collections
import dataclasses
import json
from collections.abc import Mapping

from configs.common.errors import UserError
from configs.common.strict_json import parse_record

LONGEST_REPORT = 100_000
"""Largest number of characters of a text that is read as a report."""

LARGEST_CLOCK_DIFFERENCE = 2.0
"""Seconds by which clocks may differ without a warning: processes leave a barrier within less."""


class DifferentProcessError(UserError):
    """The processes of a run differ in texts that must be alike; the message names the processes and the texts."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StartReport:
    """The report of a process at the start of a run.

    Attributes:
        host: Name of its host.
        time: Its clock when it left the barrier before the reports, in seconds.
        identity: Texts that must be alike, by name.
        failure: The failure that its device check found; empty for none.
    """

    host: str
    time: float
    identity: Mapping[str, str]
    failure: str = ""

    def to_json(self) -> str:
        """Serialises the report for the other processes."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str, process: int) -> "StartReport":
        """Parses the report that a text holds. Raises UserError for every other text; names the process."""
        where = f"the start report of process {process}"
        if len(text) > LONGEST_REPORT:
            raise UserError(f"{where} has {len(text)} characters, of at most {LONGEST_REPORT}")
        fields = parse_record(text, where, {"host": str, "time": float, "identity": dict, "failure": str})
        if not all(isinstance(value, str) for value in fields["identity"].values()):
            raise UserError(f"{where} has an identity of other values than texts")
        return cls(**fields)


def describe_differences(reports: Mapping[int, StartReport]) -> str:
    """Names the processes that differ from most, and the texts, where both sides report them; empty if all are alike.

    Args:
        reports: The reports, by process.
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
    """Says by how much clocks differ; empty if it is no more than `LARGEST_CLOCK_DIFFERENCE`."""
    earliest, latest = (pick(reports, key=lambda process: reports[process].time) for pick in (min, max))
    difference = reports[latest].time - reports[earliest].time
    if difference <= LARGEST_CLOCK_DIFFERENCE:
        return ""
    return (
        f"the clock of {_name_processes([latest], reports)} is {difference:.0f} s ahead of that of "
        f"{_name_processes([earliest], reports)}: times in logs and file systems do not agree"
    )


def describe_failures(reports: Mapping[int, StartReport]) -> str:
    """Names the processes that failed their device check, and the failures; empty if none did."""
    return "; ".join(
        f"{_name_processes([process], reports)}: {report.failure}"
        for process, report in reports.items()
        if report.failure
    )


def _name_processes(processes: list[int], reports: Mapping[int, StartReport]) -> str:
    hosts = ", ".join(dict.fromkeys(reports[process].host for process in processes))
    return f"process {', '.join(map(str, processes))} ({hosts})"
