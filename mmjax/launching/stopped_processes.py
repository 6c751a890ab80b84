"""Processes that are stopped (SIGSTOP): their parent learns of it from the system, whatever they do.

The processes of a run watch each other once they have joined. Before that, only the launcher can see that one of them
is frozen. `local_processes.py` watches its children by this.
"""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence

STOPPED_SECONDS = 30.0
"""Seconds for which a process may be stopped before it is killed."""

_INTERVAL = 1.0


class StoppedProcesses:
    """Kills children that are stopped for longer than `STOPPED_SECONDS`, in a thread that ends with them.

    Args:
        processes: The children, each the leader of a process group.

    Attributes:
        killed: Positions, within `processes`, of the processes that were killed.
    """

    def __init__(self, processes: Sequence["subprocess.Popen[bytes]"]) -> None:
        self.killed: set[int] = set()
        self._processes = processes
        self._stopped_since: dict[int, float] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stopped processes", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the watching thread."""
        self._closed.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._closed.wait(_INTERVAL):
            for number, process in enumerate(self._processes):
                if process.returncode is None:
                    self._update(number, process.pid)
                    since = self._stopped_since.get(number)
                    if since is not None and time.monotonic() - since > STOPPED_SECONDS:
                        self._kill(number, process.pid)

    def _kill(self, number: int, pid: int) -> None:
        del self._stopped_since[number]
        self.killed.add(number)  # before its end is reported
        try:
            os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:  # it has just ended by itself
            self.killed.discard(number)

    def _update(self, number: int, pid: int) -> None:
        """Takes note of the stops and continuations since the last time."""
        try:
            while change := os.waitid(os.P_PID, pid, os.WSTOPPED | os.WCONTINUED | os.WNOHANG):
                if change.si_code == os.CLD_STOPPED:
                    self._stopped_since.setdefault(number, time.monotonic())
                else:
                    self._stopped_since.pop(number, None)
        except ChildProcessError:  # it has ended, and another thread has waited for it
            self._stopped_since.pop(number, None)
