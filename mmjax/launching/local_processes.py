"""The processes of one start of a run on this host: starting, signals, logs, and reports of their ends.

`supervisor.py` makes a `LocalProcesses` for every start.
"""

import contextlib
import dataclasses
import os
import pathlib
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Sequence

from mmjax.launching.environment import free_port, process_environment
from mmjax.launching.process_end import ProcessEnd
from mmjax.launching.stopped_processes import StoppedProcesses

TERMINATION_SECONDS = 5.0
"""Seconds that processes have between SIGTERM and SIGKILL when another of their run has failed."""

Events = queue.SimpleQueue[ProcessEnd | signal.Signals]
"""Queue on which a supervisor waits: ends of processes, and signals that it received."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaunchSettings:
    """Settings with which the processes of a run are started.

    Attributes:
        devices: Number of devices of each process; None leaves the choice to jax.
        logs: Folder of the logs of all processes but the first, which shares the launcher's output.
    """

    devices: int | None
    logs: pathlib.Path

    def log(self, rank: int) -> pathlib.Path:
        """Path of the log of a process; it is appended to at a restart."""
        return self.logs / f"process-{rank}.log"


class LocalProcesses:
    """Starts the processes of a run; each is the leader of a session, so that it ends with all that it started.

    Args:
        command: Command line of each process.
        slots: The slot of each process.
        settings: Settings of the processes.
        events: Receives a `ProcessEnd` for every process that ends.
    """

    def __init__(self, command: Sequence[str], slots: Sequence[int], settings: LaunchSettings, events: Events) -> None:
        port = free_port()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._reporters: list[threading.Thread] = []
        self._stopped: StoppedProcesses | None = None
        try:
            for rank in range(len(slots)):
                self._processes.append(_start(command, slots, settings, rank, port))
        except BaseException:
            self.kill()
            raise
        # A single process keeps nobody waiting while it is stopped.
        self._stopped = StoppedProcesses(self._processes if len(slots) > 1 else ())
        self._reporters = [
            threading.Thread(target=_report_end, args=(rank, process, self._stopped, events), daemon=True)
            for rank, process in enumerate(self._processes)
        ]
        for reporter in self._reporters:
            reporter.start()

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to every process that has not ended."""
        for process in self._processes:
            process.send_signal(number)

    def end(self) -> None:
        """Ends all processes: SIGTERM, and SIGKILL for processes that go on for `TERMINATION_SECONDS` longer."""
        self.send(signal.SIGTERM)
        deadline = time.monotonic() + TERMINATION_SECONDS
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(deadline - time.monotonic(), 0))
        self.kill()

    def kill(self) -> None:
        """Kills all processes and their children; their ends are in the queue of events then."""
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for reporter in self._reporters:
            reporter.join()
        if self._stopped:
            self._stopped.close()


def _start(
    command: Sequence[str], slots: Sequence[int], settings: LaunchSettings, rank: int, port: int
) -> "subprocess.Popen[bytes]":
    environment = process_environment(rank, len(slots), settings.devices, port, slots[rank])
    with contextlib.ExitStack() as opened:
        log = opened.enter_context(settings.log(rank).open("ab")) if rank else None
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _report_end(rank: int, process: "subprocess.Popen[bytes]", stopped: StoppedProcesses, events: Events) -> None:
    status = process.wait()
    events.put(ProcessEnd(rank, status, was_stopped=rank in stopped.killed))
