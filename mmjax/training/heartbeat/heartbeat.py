"""The heartbeat of a run of several processes: one that dies, freezes, fails or diverges ends the run, and is named.

Every process writes its status into jax's coordination service, from a thread, so that it does so while the main
thread waits for devices or compiles, too. Process 0 reads all statuses, and writes there why the run ends; the others
notice the loss of process 0 itself because they get no answer, or because jax would abort them.
"""

import atexit
import contextlib
import itertools
import logging
import sys
import threading
import time
import typing
from collections.abc import Iterator, Mapping, Sequence

import jax

from mmjax.training.heartbeat.final_errors import final_exit_code, may_come_from_another
from mmjax.training.heartbeat.host_stragglers import HostStragglers
from mmjax.training.heartbeat.leaving import call_on_abort, dump, leave, leave_at_once
from mmjax.training.heartbeat.liveness import Liveness, Verdict, describe_loss, describe_process, parse_verdict
from mmjax.training.heartbeat.process_status import LONGEST_FAILURE, Phase, ProcessStatus, parse_status
from mmjax.training.heartbeat.standstill import Standstill
from mmjax.training.heartbeat.step_digests import StepDigests, find_divergence
from sharding.runtime.coordination import ProcessStore
from sharding.schedules.op_log import OpLog

_LOG = logging.getLogger(__name__)
_STATUS, _VERDICT, _DUMP = "status", "verdict", "dump"
_LAST_OPS = 16
_ANSWER_PATIENCE = 2.0
"""Seconds within which process 0, if it lives, answers an aborting process."""

_numbers = itertools.count(1)
"""Numbers of the heartbeats of this process; alike in all processes, so that each has its own folder in the store."""


class Heartbeat:
    """Gives and watches signs of life while it is entered; has no thread in a run of one process.

    A process is lost when it was silent for half of the timeout. Each one that is left then dumps its stacks, prints
    one line that names it and exits with `PROCESS_LOST`, all of them within the timeout. The same happens when a
    process ends by an error, when processes disagree on their steps, and when no process makes progress.

    Args:
        timeout: Seconds within which a process that dies or freezes ends the run.
        progress_timeout: Seconds without any progress after which the run ends.

    Attributes:
        step: Steps that this process has dispatched.
        op_log: Log of the ops that this process has dispatched; set when there is an executor.
    """

    def __init__(self, timeout: float, progress_timeout: float) -> None:
        self.step = 0
        self.op_log: OpLog | None = None
        self._phase: Phase = "starting"
        self._timeout, self._interval, self._patience = timeout, timeout / 12, timeout / 2
        self._rank, self._processes = jax.process_index(), jax.process_count()
        self._last_progress = self._last_answer = time.monotonic()
        self._digests = StepDigests()
        self._window: dict[str, float] = {}
        self._failure, self._exit_code = "", 1
        self._ended, self._awake = threading.Event(), threading.Event()
        self._told = threading.Event()  # process 0 knows of the failure
        self._threads: list[threading.Thread] = []
        self._beat, self._dumps = 0, ""
        self._hosts: dict[int, str] = {}
        self._first_status: ProcessStatus | None = None
        self._verdict: Verdict | None = None
        self._liveness = Liveness(self._patience)
        self._standstill, self._stragglers = Standstill(progress_timeout, timeout), HostStragglers()

    def __enter__(self) -> "Heartbeat":
        if self._processes > 1:
            folder = f"heartbeat {next(_numbers)}"
            self._store, self._first_store = ProcessStore(folder), ProcessStore(f"{folder} of process 0")
            self._write()  # from now on it is judged
            self._last_answer = time.monotonic()
            self._threads = [
                threading.Thread(target=target, daemon=True, name="heartbeat")
                for target in (self._give_signs, *((self._watch_first_process,) if self._rank else ()))
            ]
            call_on_abort(self._on_abort)
            atexit.register(self._at_exit)
            for thread in self._threads:
                thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            self.fail(error)
        if self._threads and not self._failure:
            self._end()
            atexit.unregister(self._at_exit)

    # ------------------------------------------------------------------ called by the main thread

    def started(self) -> None:
        """Says that opening the data and restoring are done: from now on the process is idle between phases."""
        self._phase = "idle"
        self.progressed()

    @contextlib.contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """Sets the phase of the process inside the block; the phase before follows, unless an error ends the block."""
        before, self._phase = self._phase, phase
        self.progressed()
        yield
        self._phase = before
        self.progressed()

    def progressed(self) -> None:
        """Says that something was finished: a step, a program, a batch."""
        self._last_progress = time.monotonic()

    def step_finished(self, step: int, known: str) -> None:
        """Says that a step was finished, with the text about it on which all processes must agree."""
        self.progressed()
        if self._threads:
            self._digests.add(step, known)

    def window_finished(self, step: int, wall: float, data: float, dispatch: float) -> None:
        """Says how long steps, their wait for data and their dispatch took on the host: means over a window, in s."""
        self._window = {"step": float(step), "wall": wall, "data": data, "dispatch": dispatch}

    @contextlib.contextmanager
    def reporting_errors(self) -> Iterator[None]:
        """Tells the other processes of an error that leaves the block."""
        try:
            yield
        except BaseException as error:
            self.fail(error)
            raise

    def fail(self, error: BaseException) -> None:
        """Says that an error ends this process. Where the loss of another may be its cause, waits for news of it."""
        if not self._threads or self._failure or (isinstance(error, SystemExit) and not error.code):
            return
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        if may_come_from_another(error):
            # The end of another process breaks a collective here before its silence is noticed.
            patience = 0.75 * self._timeout
            _LOG.error("%s; waiting %g s for news of a lost process", reason, patience)
            self._threads[0].join(patience)
        self._exit_code = final_exit_code(error)
        self._failure = reason[:LONGEST_FAILURE]
        self._awake.set()

    def name(self, rank: int) -> str:
        """Names a process, with its host if this process knows it; process 0 knows all."""
        return f"process {rank} on {self._hosts[rank]}" if rank in self._hosts else f"process {rank}"

    # ------------------------------------------------------------------ threads

    def _status(self) -> ProcessStatus:
        op = self.op_log.waits_for() if self.op_log and self._phase != "idle" else None
        return ProcessStatus.of_this_process(
            "ended" if self._ended.is_set() else self._phase,
            self.step,
            self._beat,
            op=str(op) if op else "",
            idle=time.monotonic() - self._last_progress,
            failure=self._failure,
            digests=self._digests.by_step(),
            window=self._window,
        )

    def _write(self) -> None:
        self._beat += 1
        status = self._status().to_json()
        self._store.write(str(self._rank), status)
        if self._rank == 0:
            self._first_store.write(_STATUS, status)

    def _give_signs(self) -> None:
        ended = logged = False
        while not ended:
            self._awake.wait(self._interval)
            self._awake.clear()
            ended = self._ended.is_set()
            try:
                self._give_sign(ended, failed=bool(self._failure))
            except jax.errors.JaxRuntimeError:  # process 0 does not answer: the other thread judges it
                continue
            except Exception:  # ends neither this thread nor the run
                if not logged:
                    _LOG.exception("a heartbeat failed; the next one is tried")
                logged = True

    def _give_sign(self, ended: bool, failed: bool) -> None:
        """Writes the status, and follows the instructions of process 0."""
        self._write()
        if self._rank == 0:
            self._judge()
        texts = self._first_store.read()
        self._last_answer = time.monotonic()
        self._first_status = parse_status(texts.get(_STATUS, "")) or self._first_status
        if failed:
            self._told.set()
        elif not ended:
            self._follow(texts)

    def _follow(self, texts: Mapping[str, str]) -> None:
        """Follows the instructions that process 0 has written."""
        if texts.get(_DUMP, "") > self._dumps:
            self._dumps = texts[_DUMP]
            dump(f"process {self._rank} ({self._status()}): no process has made progress for long", self._last_ops())
        before, self._verdict = self._verdict, parse_verdict(texts.get(_VERDICT, ""))
        # One interval later: a process that fails by the same error as the one that is named ends by its own.
        if self._verdict and before:
            self._leave(self._verdict)

    def _judge(self) -> None:
        """Reads the statuses of all processes and writes instructions; process 0 alone does so."""
        now, texts = time.monotonic(), self._store.read()
        parsed = {rank: parse_status(texts.get(str(rank), "")) for rank in range(self._processes)}
        statuses = {rank: status for rank, status in parsed.items() if status}
        self._hosts = {rank: status.host for rank, status in statuses.items()}
        self._liveness.update(statuses, now)
        for line in self._stragglers.update(statuses):
            _LOG.warning("%s", line)
        verdict = self._verdict or self._liveness.verdict(now) or find_divergence(statuses)
        if not verdict:
            answer = self._standstill.judge(statuses)
            if answer == "dump":
                self._first_store.write(_DUMP, f"{self._beat:012d}")
            if answer == "end":
                verdict = self._standstill.verdict(statuses)
        if verdict:
            self._first_store.write(_VERDICT, verdict.to_json())

    def _watch_first_process(self) -> None:
        while not self._ended.wait(self._interval):
            silence = time.monotonic() - self._last_answer
            if silence > self._patience and not self._told.is_set():
                self._leave(Verdict((0,), describe_loss(0, self._first_status, silence)))

    # ------------------------------------------------------------------ the end

    def _end(self) -> None:
        self._ended.set()
        self._awake.set()
        self._threads[0].join(self._patience)  # process 0 may not answer

    def _on_abort(self) -> None:
        """Called by a thread of jax that aborts this process; returns if process 0 is not the reason."""
        if self._told.is_set():  # process 0 ends because of it
            leave_at_once(self._exit_code)
        if not self._verdict:
            if not self._rank or self._first_answers():
                return
            self._verdict = Verdict((0,), f"{describe_process(0, self._first_status)} has ended; its log says why")
        self._leave(self._verdict)

    def _first_answers(self) -> bool:
        """Whether process 0 answers; jax's client returns neither a value nor an error when it has lost process 0."""
        answered = threading.Event()

        def ask() -> None:
            with contextlib.suppress(jax.errors.JaxRuntimeError):
                self._first_store.read()
                answered.set()

        threading.Thread(target=ask, daemon=True).start()
        return answered.wait(_ANSWER_PATIENCE)

    def _at_exit(self) -> None:
        """Ends the process when the interpreter exits after an error: jax would wait minutes for the others."""
        unhandled: BaseException | None = getattr(sys, "last_value", None)
        if unhandled is not None:
            self.fail(unhandled)
        if not self._failure:  # the trainer was not closed
            self._end()
            return
        self._told.wait(self._patience)
        if self._rank == 0:
            # The others read of the failure within an interval, or later on busy hosts; that needs this process.
            time.sleep(2 * self._interval)
        leave_at_once(self._exit_code)

    def _leave(self, verdict: Verdict) -> typing.NoReturn:
        """Ends this process from a thread: its main thread may wait for the lost process for ever."""
        try:
            state, ops = f" ({self._status()})", self._last_ops()
        except Exception:  # an error in describing this process must not keep it from its end
            state, ops = "", []
        leave(f"{verdict.reason}; process {self._rank}{state} ends; continue with --resume", ops)

    def _last_ops(self) -> Sequence[str]:
        return [str(op) for op in self.op_log.last(_LAST_OPS)] if self.op_log else []
