"""Supervising the processes of a run on this host: one that fails ends the others, and the run may start again."""

import contextlib
import queue
import shlex
import signal
import socket
import sys
import time
import types
from collections.abc import Callable, Iterator, Sequence

from configs.errors import USAGE_ERROR
from mmjax.launching.local_processes import Events, LaunchSettings, LocalProcesses
from mmjax.launching.process_end import ProcessEnd, last_lines
from mmjax.launching.restart_limit import RestartLimit

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that every process of the run gets when the launcher gets them."""

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Those of them that ask for the end of the run."""


def supervise(
    first_command: Sequence[str],
    restart_command: Callable[[], Sequence[str]],
    settings: LaunchSettings,
    limit: RestartLimit,
) -> int:
    """Runs a command in several processes until all have ended with code 0, or one has failed too often.

    Args:
        first_command: What each process runs.
        restart_command: Makes what each process runs after a failure.
        settings: How many processes, and with what.
        limit: How often the run may start again.

    Returns:
        The exit code: 0, or that of the process that failed first.
    """
    command = first_command
    with _signals() as events:
        while True:
            processes = LocalProcesses(command, settings, events)
            try:
                failed, stopping = _wait(processes, settings.processes, events)
                if failed is None:
                    return 0
                processes.end()
            finally:
                processes.kill()
            stopping |= _drain(events)
            _print_failure(failed, settings)
            if stopping or failed.exit_code == USAGE_ERROR:  # the same command line would fail again
                return failed.exit_code
            if not limit.take(time.monotonic()):
                if limit.count:
                    _say(f"not started again: {limit.used} restarts within {limit.window:g} s are the most allowed")
                return failed.exit_code
            command = restart_command()
            _say(f"restart {limit.used} of at most {limit.count} within {limit.window:g} s: {shlex.join(command)}")


def _wait(processes: LocalProcesses, running: int, events: Events) -> tuple[ProcessEnd | None, bool]:
    """Waits until all processes have ended or one has failed, and passes signals on.

    Returns:
        The one that failed, if one has, and whether a signal asked for the end.
    """
    stopping = False
    while running:
        event = events.get()
        if isinstance(event, signal.Signals):
            stopping |= event in STOPPING
            processes.send(event)
        elif event.status:
            return event, stopping
        else:
            running -= 1
    return None, stopping


@contextlib.contextmanager
def _signals() -> Iterator[Events]:
    """A queue that receives the signals that are passed on; only the main thread may enter it."""
    events: Events = queue.SimpleQueue()

    def receive(number: int, frame: types.FrameType | None) -> None:
        events.put(signal.Signals(number))

    previous = {number: signal.signal(number, receive) for number in PASSED_ON}
    try:
        yield events
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _drain(events: Events) -> bool:
    """Forgets the ends of the processes of an ended start; returns whether a signal asked for the end meanwhile."""
    stopping = False
    with contextlib.suppress(queue.Empty):
        while True:
            stopping |= events.get_nowait() in STOPPING
    return stopping


def _print_failure(failed: ProcessEnd, settings: LaunchSettings) -> None:
    others = "; all others were ended" if settings.processes > 1 else ""
    said = f"process {failed.rank} on {socket.gethostname()} {failed.describe()}{others}"
    if failed.rank == 0:
        _say(said)
        return
    log = settings.log(failed.rank)
    _say(f"{said}; the last lines of {log}:")
    for line in last_lines(log):
        print(f"    {line}", file=sys.stderr)


def _say(text: str) -> None:
    print(f"mmjax launch: {text}", file=sys.stderr, flush=True)
