"""Waiting for the other processes of a run, with a limit of our own and an error that names who is missing."""

import collections
import re

import jax
from orbax.checkpoint import multihost

from configs.errors import UserError

PATIENCE = 1800
"""Seconds that a process waits for the others: one may compile, read or initialize for so long."""

_times_waited: collections.Counter[str] = collections.Counter()


class MissingProcessError(UserError):
    """Another process did not arrive at a point that all processes pass."""


def wait_for_processes(phase: str, patience: float = PATIENCE) -> None:
    """Returns when all processes have called this as often for the same phase.

    The first use of a communicator allows a late process 30 seconds only on CPUs, and names nobody when they are over.
    So this is called before whatever follows a phase whose duration differs between processes.

    Args:
        phase: What follows, in words; the error names it.
        patience: Seconds to wait.

    Raises:
        MissingProcessError: The time is over; names the processes that were awaited, as far as they are known.
    """
    if jax.process_count() == 1:
        return
    _times_waited[phase] += 1
    wait = multihost.get_barrier_sync_fn()
    try:
        wait(key=f"mmjax: {phase} ({_times_waited[phase]})", timeout_ms=round(patience * 1000))
    except jax.errors.JaxRuntimeError as error:
        named = re.search(r"timed out task names:\s*([\d,\s]+)", str(error))
        missing = ", ".join(re.findall(r"\d+", named[1])) if named else "unknown"
        raise MissingProcessError(
            f"process {jax.process_index()} waited {patience:g} s for all {jax.process_count()} processes "
            f"before {phase}; missing: process {missing}; its log says why"
        ) from error
