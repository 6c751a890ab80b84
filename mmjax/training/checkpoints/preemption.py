"""SIGTERM asks for a checkpoint and an orderly end, at the same step on every process."""

import signal
import types
from typing import Any

import jax
from jax.experimental import multihost_utils


class PreemptionWatcher:
    """Watches for SIGTERM while it is entered.

    Across processes jax's own preemption service agrees on the step; alone, the next step is the one.
    """

    def __init__(self) -> None:
        self._asked = False
        self._before: Any = None

    def __enter__(self) -> "PreemptionWatcher":
        if jax.process_count() == 1:
            self._before = signal.signal(signal.SIGTERM, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        if jax.process_count() == 1:
            signal.signal(signal.SIGTERM, self._before)

    def _ask(self, number: int, frame: types.FrameType | None) -> None:
        self._asked = True

    def stop_requested(self, step: int) -> bool:
        """Whether to save and stop now, after `step` steps."""
        if jax.process_count() == 1:
            return self._asked
        return bool(multihost_utils.reached_preemption_sync_point(step))
