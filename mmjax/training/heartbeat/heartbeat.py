"""The heartbeat of a run of several processes: one that dies or freezes ends the run on all hosts, and is named.

Every process writes its status into jax's coordination service, from a thread, so that it also does while the main
thread waits for devices or compiles. Process 0 reads them all, and writes there which process is lost; the others
find out about process 0 itself by getting no answer.
"""

import itertools
import logging
import os
import sys
import threading
import time

import jax

from configs.errors import PROCESS_LOST, UserError
from mmjax.training.heartbeat.liveness import Liveness, describe_loss
from mmjax.training.heartbeat.process_status import Phase, ProcessStatus, parse_status
from sharding.runtime.coordination import ProcessStore

_LOG = logging.getLogger(__name__)
_VERDICT = "verdict"
_numbers = itertools.count(1)
"""Of the heartbeats of this process; alike in all processes, so that each has a folder of its own in the store."""


class Heartbeat:
    """Gives and watches signs of life while it is entered; does nothing in a run of one process.

    A process is lost when it was silent for half of the timeout. Each one that is left then prints one line that names
    it and exits with `PROCESS_LOST`, all of them within the timeout.

    Args:
        timeout: Seconds within which a process that dies or freezes ends the run.
        step: Steps that are done.
    """

    def __init__(self, timeout: float, step: int) -> None:
        self._phase: Phase = "compiling"
        self._step = step
        self._timeout, self._interval, self._patience = timeout, timeout / 12, timeout / 2
        self._rank, self._processes = jax.process_index(), jax.process_count()
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []
        self._beat = 0
        self._first_status: ProcessStatus | None = None
        self._last_answer = 0.0

    def __enter__(self) -> "Heartbeat":
        if self._processes > 1:
            self._store = ProcessStore(f"heartbeat {next(_numbers)}")
            self._last_answer = time.monotonic()
            self._liveness = Liveness(self._patience)
            self._threads = [
                threading.Thread(target=target, daemon=True, name="heartbeat")
                for target in (self._give_signs, self._watch_first_process)
            ]
            for thread in self._threads:
                thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if not self._threads:
            return
        if isinstance(error, Exception) and not isinstance(error, UserError):
            # The end of another process breaks a collective here before its silence is noticed.
            reason = str(error).partition("\n")[0]
            _LOG.error("%s: %s; waiting %g s for news of a lost process", type(error).__name__, reason, self._timeout)
            self._threads[0].join(self._timeout)
        self._ended.set()
        self._threads[0].join()
        if error is None:
            self._write("ended")

    def show(self, phase: Phase, step: int) -> None:
        """Sets what the next heartbeats say."""
        self._phase, self._step = phase, step

    def _write(self, phase: Phase) -> None:
        self._beat += 1
        status = ProcessStatus.of_this_process(phase, self._step, self._beat)
        self._store.write(str(self._rank), status.to_json())

    def _give_signs(self) -> None:
        while not self._ended.wait(self._interval):
            try:
                self._write(self._phase)
                texts = self._store.read()
            except jax.errors.JaxRuntimeError:  # process 0 does not answer: the other thread judges it
                continue
            self._last_answer = time.monotonic()
            parsed = {rank: parse_status(texts.get(str(rank), "")) for rank in range(self._processes)}
            statuses = {rank: status for rank, status in parsed.items() if status}
            self._first_status = statuses.get(0)
            verdict = texts.get(_VERDICT, "")
            if self._rank == 0:
                self._liveness.update(statuses, self._last_answer)
                verdict = self._liveness.lost(self._last_answer)
                if verdict:
                    self._store.write(_VERDICT, verdict)
                    time.sleep(2 * self._interval)  # the others read it, which needs this process
            if verdict:
                self._leave(verdict)

    def _watch_first_process(self) -> None:
        while not self._ended.wait(self._interval):
            silence = time.monotonic() - self._last_answer
            if silence > self._patience and self._rank:
                self._leave(describe_loss(0, self._first_status, silence))

    def _leave(self, verdict: str) -> None:
        """Ends this process from a thread: its main thread may wait for the lost process for ever."""
        status = ProcessStatus.of_this_process(self._phase, self._step, self._beat)
        line = f"error: {verdict}; process {self._rank} ({status}) ends; continue with --resume\n"
        sys.stdout.flush()
        os.write(sys.stderr.fileno(), line.encode())
        os._exit(PROCESS_LOST)
