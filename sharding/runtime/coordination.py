"""Barriers and texts between the processes of a run, through jax's coordination service, which runs in process 0."""

import collections
import re
from collections.abc import Callable

import jax
from orbax.checkpoint import multihost

from configs.common.errors import PROCESS_LOST, UserError

PATIENCE = 1800
"""Seconds that a process waits for the others: one may compile, read or initialize for so long."""

_times_waited: collections.Counter[str] = collections.Counter()


class MissingProcessError(UserError):
    """Another process did not arrive at a point that all processes pass."""

    exit_code = PROCESS_LOST


def wait_for_processes(phase: str, patience: float = PATIENCE) -> None:
    """Returns when all processes have called this as often for the same phase.

    The first use of a communicator allows a late process 30 seconds only on CPUs, and names nobody when they are over.
    So this is called before whatever follows a phase whose duration differs between processes.

    Args:
        phase: What follows, in words; the error names it.
        patience: Seconds to wait.

    Raises:
        MissingProcessError: The time is over, and the error names the processes that were awaited; or the service ends
            the wait, because jax has found that a process is lost.
    """
    if jax.process_count() == 1:
        return
    _times_waited[phase] += 1
    client = multihost.get_jax_distributed_client()
    try:
        client.wait_at_barrier(f"mmjax: {phase} ({_times_waited[phase]})", round(patience * 1000))
    except jax.errors.JaxRuntimeError as error:
        named = re.search(r"timed out task names:\s*([\d,\s]+)", str(error))
        if not named:
            reason = str(error).partition("\n")[0]
            raise MissingProcessError(
                f"process {jax.process_index()} cannot wait for the others before {phase}: {reason}"
            ) from error
        missing = ", ".join(re.findall(r"\d+", named[1]))
        raise MissingProcessError(
            f"process {jax.process_index()} waited {patience:g} s for all {jax.process_count()} processes "
            f"before {phase}; missing: process {missing}; its log says why"
        ) from error


class ProcessStore:
    """A folder of texts by name, which every process of the run can write and read.

    All methods raise `jax.errors.JaxRuntimeError` if process 0 refuses, and wait while it does not answer.

    Args:
        folder: Name of the folder.
    """

    def __init__(self, folder: str) -> None:
        self._prefix = f"mmjax/{folder}/"
        self._client = multihost.get_jax_distributed_client()

    def write(self, name: str, text: str) -> None:
        """Writes a text under a name, over a text that has it already."""
        self._client.key_value_set(self._prefix + name, text, allow_overwrite=True)

    def read(self) -> dict[str, str]:
        """Reads all texts, by name."""
        return {key.removeprefix(self._prefix): text for key, text in self._client.key_value_dir_get(self._prefix)}

    def wait_for(self, name: str, patience: float) -> str:
        """The text of a name, once some process has written it; an error after so many seconds."""
        return self._client.blocking_key_value_get(self._prefix + name, round(patience * 1000))

    def delete(self, name: str) -> None:
        """Removes the text of a name, if there is one."""
        self._client.key_value_delete(self._prefix + name)


def exchange_texts(phase: str, text: str, patience: float = PATIENCE) -> dict[int, str]:
    """Returns the text of each process, once all have called this as often for the same phase.

    Args:
        phase: What follows, in words; errors name it.
        text: The text of this process.
        patience: Seconds to wait for the others.

    Raises:
        MissingProcessError: As `wait_for_processes`.
    """
    process = jax.process_index()
    if jax.process_count() == 1:
        return {process: text}
    # Nobody is two exchanges ahead of a process that still reads, so two folders are enough for any number of them.
    store = ProcessStore(f"exchange/{phase}/{_times_waited[phase] % 2}")
    store.write(str(process), text)
    wait_for_processes(phase, patience)
    return {int(name): said for name, said in store.read().items()}


def judge_texts(phase: str, text: str, judge: Callable[[dict[int, str]], str], patience: float) -> str:
    """Returns process 0's judgement of all processes' texts, once all have called this as often for the same phase.

    No other process reads the texts of all, so it is cheap enough for every step.

    Args:
        phase: What follows, in words; errors name it.
        text: The text of this process.
        judge: From the text of each process to the judgement; called in process 0 only.
        patience: Seconds to wait for the others.

    Raises:
        MissingProcessError: As `wait_for_processes`.
    """
    process = jax.process_index()
    if jax.process_count() == 1:
        return judge({process: text})
    store, judgements = ProcessStore(f"judged/{phase}"), ProcessStore(f"judgements/{phase}")
    store.write(str(process), text)
    wait_for_processes(phase, patience)
    number = _times_waited[phase]
    if process == 0:
        judgements.write(str(number), judge({int(name): said for name, said in store.read().items()}))
        judgements.delete(str(number - 1))  # who has come here has read it
    return judgements.wait_for(str(number), patience)
