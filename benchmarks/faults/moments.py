"""The moments at which faults hit a run, seen from outside."""

import dataclasses
import random
import time
from collections.abc import Callable
from typing import Literal

from benchmarks.faults.launched_run import LaunchedRun
from mmjax.training.checkpoints.discovery import UNFINISHED_MARK

Phase = Literal["starting", "restoring", "compiling", "training", "saving", "evaluating"]
START_PHASES: tuple[Phase, ...] = ("starting", "restoring", "compiling")
"""Phases before the first step of a start."""

BOUND = 240.0
"""Seconds within which a run that no fault has hit reaches each of its phases."""


@dataclasses.dataclass(frozen=True)
class Moment:
    """When a fault hits.

    Attributes:
        phase: The phase of the run.
        after_steps: Steps that the run does before, since its last start; for phases after the first step.
        delay: Seconds after the beginning of the phase.
    """

    phase: Phase
    after_steps: int
    delay: float


_DELAYS: dict[Phase, float] = {
    "starting": 4.0,
    "restoring": 1.0,
    "compiling": 2.0,
    "training": 0.5,
    "saving": 0.3,
    "evaluating": 0.1,
}
"""The most seconds after the beginning of a phase."""


def draw_moment(phase: Phase, chance: random.Random) -> Moment:
    """Draws a random moment of a phase."""
    return Moment(phase, 0 if phase in START_PHASES else chance.randrange(1, 6), chance.uniform(0, _DELAYS[phase]))


def _is_configured(run: LaunchedRun) -> bool:
    """Whether the last start has read its configuration and plan: it opens the data and restores the checkpoint."""
    return run.says(", schedule ", run.last_start)


def _unfinished(run: LaunchedRun) -> set[str]:
    """Names of the checkpoints that are being written, or whose writing was interrupted."""
    return {path.name for path in run.folder.checkpoints.glob(f"*{UNFINISHED_MARK}")}


_REACHED: dict[Phase, Callable[[LaunchedRun, set[str]], bool]] = {
    "starting": lambda run, left: len(run.pids()) == run.processes,
    "restoring": lambda run, left: _is_configured(run),
    "compiling": lambda run, left: run.says("compiling 0 of", run.last_start),
    "training": lambda run, left: True,
    "saving": lambda run, left: bool(_unfinished(run) - left),
    "evaluating": lambda run, left: run.says("evaluating 0 batches", run.last_step),
}
"""Whether a run is in a phase, given the unfinished checkpoints that were there before."""


def wait_for(moment: Moment, run: LaunchedRun) -> None:
    """Returns at the moment, in a run whose processes have been started.

    Raises:
        BoundExceededError: The run does not reach the phase.
        RunEndedError: The run ended before.
    """
    since, left = len(run.lines), _unfinished(run)
    if moment.phase not in START_PHASES:
        run.wait_until(lambda: len(run.steps_shown(since)) >= moment.after_steps, BOUND, "a step")
    run.wait_until(lambda: _REACHED[moment.phase](run, left), BOUND, f"the phase {moment.phase}")
    time.sleep(moment.delay)
