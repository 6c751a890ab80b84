"""Ending a run in order: SIGTERM and Ctrl-C let the step end and the run save, a second Ctrl-C leaves at once.

The training loop asks between steps whether to stop.
"""

import contextlib
import itertools
import os
import signal
import threading
import types
from collections.abc import Iterator
from typing import Any

import jax
from jax.experimental import multihost_utils

from mmjax.training.interrupt_answers import answered_interrupts

_ASKED = itertools.count(1)  # number of this process's queries; jax's preemption service needs rising numbers


class StoppedBeforeFirstStepError(KeyboardInterrupt):
    """A stop was asked for when this process had not trained a step yet, so there is nothing to save."""


class StopSignals:
    """Watches for SIGTERM and SIGINT (Ctrl-C) while it is entered.

    The first SIGINT is answered at once, and the second ends the process (`answered_interrupts`).

    Across processes jax's preemption service, which watches for SIGTERM, agrees on when all stop. Outside
    the main thread, where Python cannot handle signals, nothing is watched for.
    """

    def __init__(self) -> None:
        self._received: signal.Signals | None = None
        self._agreed = False
        self._leave_at_once = False
        self._previous_handlers: dict[signal.Signals, Any] = {}
        self._answers = contextlib.ExitStack()

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is not threading.main_thread():
            return self
        for number in self._watched():
            self._previous_handlers[number] = signal.signal(number, self._receive)
        self._answers.enter_context(answered_interrupts("stopping after this step; Ctrl-C again leaves at once"))
        return self

    def __exit__(self, *_: object) -> None:
        self._answers.close()
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)
        self._previous_handlers.clear()

    def requested(self) -> bool:
        """Whether to save and stop now; every process asks equally often, before every step and batch to evaluate."""
        if jax.process_count() == 1:
            return self._received is not None
        if not self._agreed:  # jax says so once
            self._agreed = bool(multihost_utils.reached_preemption_sync_point(next(_ASKED)))
        return self._agreed

    @property
    def reason(self) -> str:
        """The signal that asked for the stop, in words: `Ctrl-C` or `SIGTERM`."""
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
