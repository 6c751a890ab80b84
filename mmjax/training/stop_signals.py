"""Ending a run in order: SIGTERM and Ctrl-C let the step end and the run save, a second Ctrl-C leaves at once."""

import contextlib
import itertools
import os
import signal
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

import jax
from jax.experimental import multihost_utils

from configs.errors import INTERRUPTED

_SHOW_CURSOR = "\x1b[?25h"

_ASKED = itertools.count(1)  # how often this process has asked; jax's preemption service wants rising numbers


class StoppedBeforeFirstStepError(KeyboardInterrupt):
    """A stop was asked for when this process had not trained a step yet, so there is nothing to save."""


class StopSignals:
    """Watches for SIGTERM and SIGINT (Ctrl-C) while it is entered.

    Python runs signal handlers between bytecodes only, and compiling one program may take seconds. So a thread reads
    the signals too: it answers at once, and ends the process at the second SIGINT.

    Across processes jax's preemption service, which watches for SIGTERM, agrees on when all stop. Outside
    the main thread, where Python cannot handle signals, nothing is watched for.
    """

    def __init__(self) -> None:
        self._received: signal.Signals | None = None
        self._agreed = False
        self._leave_at_once = False
        self._previous_handlers: dict[signal.Signals, Any] = {}
        self._previous_wakeup = -1
        self._pipe: tuple[int, int] | None = None

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is not threading.main_thread():
            return self
        read_end, write_end = self._pipe = os.pipe()
        os.set_blocking(write_end, False)
        for number in self._watched():
            self._previous_handlers[number] = signal.signal(number, self._receive)
        self._previous_wakeup = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        threading.Thread(target=_answer_signals, args=(read_end,), name="stop signals", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._pipe is None:
            return
        signal.set_wakeup_fd(self._previous_wakeup)
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)
        os.close(self._pipe[1])  # the thread reads the end of the pipe, and closes the other end
        self._pipe = None

    def requested(self) -> bool:
        """Whether to save and stop now; every process asks equally often, before every step and batch to evaluate."""
        if jax.process_count() == 1:
            return self._received is not None
        if not self._agreed:  # jax says so once
            self._agreed = bool(multihost_utils.reached_preemption_sync_point(next(_ASKED)))
        return self._agreed

    @property
    def reason(self) -> str:
        """What asked for the stop, in words: `Ctrl-C` or `SIGTERM`."""
        return "Ctrl-C" if self._received is signal.SIGINT else "SIGTERM"

    @contextlib.contextmanager
    def leaving_at_once(self) -> Iterator[None]:
        """While it is entered, a signal raises `StoppedBeforeFirstStepError`: there is nothing to save yet."""
        if self._received is not None:
            raise StoppedBeforeFirstStepError
        self._leave_at_once = jax.process_count() == 1
        try:
            yield
        finally:
            self._leave_at_once = False

    def _watched(self) -> tuple[signal.Signals, ...]:
        """Across processes SIGTERM is left to jax's preemption service."""
        return (signal.SIGINT,) if jax.process_count() > 1 else (signal.SIGINT, signal.SIGTERM)

    def _receive(self, number: int, frame: types.FrameType | None) -> None:
        first, self._received = self._received is None, signal.Signals(number)
        if first and jax.process_count() > 1:
            os.kill(os.getpid(), signal.SIGTERM)
        if self._leave_at_once:
            self._leave_at_once = False  # what follows must not be interrupted again
            raise StoppedBeforeFirstStepError


def _answer_signals(read_end: int) -> None:
    """Says what a signal does, and ends the process at the second SIGINT; returns when the pipe is closed."""
    with open(read_end, "rb", buffering=0) as pipe:
        interrupts = 0
        while numbers := pipe.read(1):
            interrupts += numbers[0] == signal.SIGINT
            if interrupts > 1:
                os.write(sys.stderr.fileno(), f"{_SHOW_CURSOR * sys.stderr.isatty()}\nleft at once\n".encode())
                os._exit(INTERRUPTED)
            if interrupts:
                os.write(sys.stderr.fileno(), b"\nstopping after this step; Ctrl-C again leaves at once\n")
