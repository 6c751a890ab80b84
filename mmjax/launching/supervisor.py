"""Supervising the processes of a run on this host: one that fails ends the others, and the run may start again.

The command `mmjax.launch` calls `supervise`.
"""

import contextlib
import queue
import shlex
import signal
import socket
import sys
import time
import types
from collections.abc import Callable, Iterator, Sequence

from configs.common.errors import DEVICE_FAILED, USAGE_ERROR
from mmjax.launching.local_processes import Events, LaunchSettings, LocalProcesses
from mmjax.launching.process_end import ProcessEnd, cause_of_failure, last_lines
from mmjax.launching.restart_limit import RestartLimit
from mmjax.launching.slots import Slots

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that every process of the run gets when the launcher gets them."""

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The passed-on signals that ask for the end of the run."""


def supervise(
    first_command: Sequence[str],
    restart_command: Callable[[], Sequence[str]],
    slots: Slots,
    settings: LaunchSettings,
    limit: RestartLimit,
) -> int:
    """Runs a command in several processes until all have ended with code 0, or one has failed too often.

    Args:
        first_command: Command line of each process.
        restart_command: Makes the command line of each process after a failure.
        slots: The slots of the first start, and how few may be left.
        settings: Settings of the processes.
        limit: Limit on the restarts of the run.

    Returns:
        The exit code: 0, or the exit code of the process that failed first.
    """
    command = first_command
    with _signals() as events:
        while True:
            processes = LocalProcesses(command, slots.used, settings, events)
            try:
                first, stopping = _wait(processes, len(slots.used), events)
                if first is None:
                    return 0
                processes.end()
            finally:
                processes.kill()
            stopped_later, ends = _drain(events)
            stopping |= stopped_later
            cause = cause_of_failure(first, ends)
            failed = cause if cause.exit_code == DEVICE_FAILED else first
            _print_failure(failed, len(slots.used), settings)
            if stopping or failed.exit_code == USAGE_ERROR:  # the same command line would fail again
                return failed.exit_code
            remaining = slots.after(cause)
            if remaining is None:
                if limit.count:
                    _say(f"not started again: at least {slots.minimum} processes must be left")
                return failed.exit_code
            if not limit.take(time.monotonic()):
                if limit.count:
                    _say(f"not started again: {limit.used} restarts within {limit.window:g} s are the most allowed")
                return failed.exit_code
            if len(remaining.used) < len(slots.used):
                _say(f"process {cause.rank} is left out; {len(remaining.used)} processes go on")
            slots, command = remaining, restart_command()
            _say(f"restart {limit.used} of at most {limit.count} within {limit.window:g} s: {shlex.join(command)}")


def _wait(processes: LocalProcesses, running: int, events: Events) -> tuple[ProcessEnd | None, bool]:
    """Waits until all processes have ended or one has failed, and passes signals on.

    Returns:
        The end of the process that failed, if one has, and whether a signal asked for the end of the run.
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


def _drain(events: Events) -> tuple[bool, list[ProcessEnd]]:
    """Returns whether a signal asked for the end meanwhile, and the ends of the processes of an ended start."""
    stopping, ends = False, list[ProcessEnd]()
    with contextlib.suppress(queue.Empty):
        while True:
            event = events.get_nowait()
            if isinstance(event, ProcessEnd):
                ends.append(event)
            else:
                stopping |= event in STOPPING
    return stopping, ends


def _print_failure(failed: ProcessEnd, processes: int, settings: LaunchSettings) -> None:
    others = "; all others were ended" if processes > 1 else ""
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
