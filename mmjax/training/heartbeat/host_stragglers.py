"""Processes whose hosts take longer over a phase of their steps than the hosts of the others.

The heartbeat of process 0 compares the means over windows of steps that every training loop reports.
"""

import statistics
from collections.abc import Mapping

from mmjax.training.heartbeat.process_status import ProcessStatus

PARTS = {"data": "waiting for data", "dispatch": "launching programs"}
"""Phases of a step that a host does by itself; its wait for devices depends on the slowest device of all."""

FACTOR = 2.0
"""A phase is slow if it takes this many times the median of the other processes,"""

SHARE = 0.05
"""and more than it by this share of the step."""

WINDOWS = 3
"""Number of slow windows of steps in a row before a process is reported."""


class HostStragglers:
    """Compares the windows of steps of all processes."""

    def __init__(self) -> None:
        self._compared: dict[int, float] = {}  # last step of the window by rank
        self._slow_since: dict[tuple[int, str], list[float]] = {}  # last steps of the slow windows in a row

    def update(self, statuses: Mapping[int, ProcessStatus]) -> list[str]:
        """Takes the newest status of each process; returns a line for each that has become a straggler.

        Windows are compared when every process has finished another one since the last comparison.
        """
        windows = {rank: status.window for rank, status in statuses.items() if status.window}
        steps = {rank: window["step"] for rank, window in windows.items()}
        if len(windows) < max(2, len(statuses)) or any(steps[rank] == self._compared.get(rank) for rank in steps):
            return []
        self._compared = steps
        lines = []
        for rank, window in sorted(windows.items()):
            for part, words in PARTS.items():
                others = statistics.median(other[part] for number, other in windows.items() if number != rank)
                key = (rank, part)
                if window[part] <= FACTOR * others or window[part] <= others + SHARE * window["wall"]:
                    self._slow_since.pop(key, None)
                    continue
                slow = self._slow_since.setdefault(key, [])
                slow.append(window["step"])
                if len(slow) == WINDOWS:
                    times = f"{window[part] / max(others, 1e-6):.3g} times"
                    lines.append(
                        f"process {rank} on {statuses[rank].host} is a straggler: {words} takes it "
                        f"{window[part]:.3g} s of a step of {window['wall']:.3g} s, {times} the median of the others, "
                        f"{others:.3g} s, in {WINDOWS} windows of steps since step {slow[0]:.0f}"
                    )
        return lines
