"""Joining the processes of one run through process 0, within a time limit; the error says which processes are missing.

`mmjax.cli.command.run` calls `initialize_distributed` before anything else of jax.
"""

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator

from configs.common.errors import PROCESS_LOST, UserError
from mmjax.distributed.devices import CPU_THREADS, has_accelerator, local_device_ids, visible_gpus
from mmjax.distributed.environments import ProcessPlacement
from mmjax.distributed.placement import find_placement
from mmjax.distributed.variables import Variables

TIMEOUT_VARIABLE = "MMJAX_START_TIMEOUT"
"""Environment variable: seconds that a process waits for the others at the start."""

DEFAULT_TIMEOUT = 300

JAX_SLACK = 120
"""Seconds by which jax's own limit is later than ours, because it ends the process by a native stack trace."""

JAX_HEARTBEAT_TIMEOUT = 60
"""Seconds without a heartbeat after which jax itself ends a run; nothing else watches until the data are opened."""

CONNECT_INTERVAL = 0.5
"""Seconds between two attempts to reach process 0."""

LONGEST_ATTEMPT = 5.0
"""Seconds of one attempt: the name may still lead to the address of a lost pod, where nothing answers."""


def initialize_distributed() -> bool:
    """Joins the processes of one run if a launcher started several, or refuses: they are never separate runs.

    Returns whether there are several.

    It must be called before anything else of jax. A process that waits for another one for longer than the seconds of
    `TIMEOUT_VARIABLE` prints one line and ends with `PROCESS_LOST`.

    Raises:
        UserError: There are several processes, and they cannot be joined.
    """
    variables = Variables(os.environ)
    placement = find_placement(variables)
    if placement is None:
        return False
    timeout = _timeout(variables)
    host, port = split_address(placement.coordinator)
    device_ids = None
    if not has_accelerator():
        os.environ.setdefault("NPROC", CPU_THREADS)
    elif not variables.has("JAX_LOCAL_DEVICE_IDS"):
        device_ids = local_device_ids(placement, visible_gpus())
    begin = time.monotonic()
    if placement.process:
        wait_for_coordinator(placement, host, port, timeout)
    import jax  # only now: it reads the environment

    with _ending_after(begin + timeout - time.monotonic(), _missing_processes(placement, timeout)):
        try:
            jax.distributed.initialize(
                coordinator_address=placement.coordinator,
                num_processes=placement.processes,
                process_id=placement.process,
                local_device_ids=device_ids,
                cluster_detection_method="deactivate",  # the place is known
                initialization_timeout=timeout + JAX_SLACK,
                heartbeat_timeout_seconds=JAX_HEARTBEAT_TIMEOUT,
            )
        except (ValueError, RuntimeError) as error:
            raise UserError(
                f"process {placement.process} of {placement.processes} can't join the run at {placement.coordinator}: "
                f"{' '.join(str(error).split())}"
            ) from error
    if jax.process_count() != placement.processes:
        raise UserError(
            f"{placement.processes} processes were started, but jax reports {jax.process_count()}; separate runs in "
            "one workdir are refused"
        )
    return True


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[IPv6]:port`. Raises UserError for anything else."""
    host, _, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not host or (":" in host and not bracketed) or not (port.isascii() and port.isdecimal() and len(port) <= 5):
        raise UserError(f"the address of process 0 is {address!r}; it must be host:port, such as node1:1234")
    if not 0 < int(port) < 65536:
        raise UserError(f"the address of process 0 is {address!r}; its port must be in 1..65535")
    return (host[1:-1] if bracketed else host), int(port)


def wait_for_coordinator(placement: ProcessPlacement, host: str, port: int, timeout: float) -> None:
    """Waits until something accepts connections at the address of process 0.

    A name that is not known yet is tried again: Kubernetes publishes the name of a pod after it has started.

    Raises:
        UserError: The time is over; the message contains the last error.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            remaining = max(deadline - time.monotonic(), CONNECT_INTERVAL)
            socket.create_connection((host, port), timeout=min(remaining, LONGEST_ATTEMPT)).close()
            return
        except (OSError, UnicodeError) as error:  # the latter from a name that no host can have
            if time.monotonic() + CONNECT_INTERVAL >= deadline:
                raise UserError(
                    f"process {placement.process} of {placement.processes} can't reach process 0 at "
                    f"{placement.coordinator} within {timeout:g} s ({getattr(error, 'strerror', None) or error}): "
                    "start process 0 there, and let this host resolve its name and reach its port; "
                    f"{TIMEOUT_VARIABLE} sets the seconds"
                ) from error
        time.sleep(CONNECT_INTERVAL)


def _timeout(variables: Variables) -> int:
    timeout = variables.number(TIMEOUT_VARIABLE) if variables.has(TIMEOUT_VARIABLE) else DEFAULT_TIMEOUT
    if not 0 < timeout <= 86400:
        raise UserError(f"{TIMEOUT_VARIABLE} is {timeout} in the environment; it must be in 1..86400 seconds")
    return timeout


def _missing_processes(placement: ProcessPlacement, timeout: int) -> str:
    return (
        f"process {placement.process} waited {timeout} s for all {placement.processes} processes to join at "
        f"{placement.coordinator}: start those that are missing, each with its own number; {TIMEOUT_VARIABLE} sets the "
        "seconds"
    )


@contextlib.contextmanager
def _ending_after(seconds: float, message: str) -> Iterator[None]:
    """Ends this process with one line if the body, which no exception can leave, takes longer."""

    def end() -> None:
        print(f"error: {message}", file=sys.stderr, flush=True)
        os._exit(PROCESS_LOST)

    timer = threading.Timer(max(seconds, 0.1), end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
