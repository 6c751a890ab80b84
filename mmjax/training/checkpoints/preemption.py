"""Preemption: SIGTERM asks for a checkpoint and an orderly end, at the same step on every process."""

import signal
import types
from typing import Any

import jax
from jax.experimental import multihost_utils


class PreemptionWatcher:
    """Watches for SIGTERM while it is entered.

    Across processes jax's preemption service agrees on the step at which all stop; a single process stops at once.
    """

    def __init__(self) -> None:
        self._received = False
        self._previous_handler: Any = None

    def __enter__(self) -> "PreemptionWatcher":
        if jax.process_count() == 1:
            self._previous_handler = signal.signal(signal.SIGTERM, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        if jax.process_count() == 1:
            signal.signal(signal.SIGTERM, self._previous_handler)

    def _receive(self, number: int, frame: types.FrameType | None) -> None:
        self._received = True

    def stop_requested(self, step: int) -> bool:
        """Whether to save and stop now, after `step` steps; every process asks before every step."""
        if jax.process_count() == 1:
            return self._received
        return bool(multihost_utils.reached_preemption_sync_point(step))
