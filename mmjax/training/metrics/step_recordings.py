"""Steps of a run whose timeline is recorded: their choice, the file of the newest, and the ops that become slower.

The training loop asks it before every step.
"""

import logging
import pathlib
from collections.abc import Mapping, Sequence

import jax

from mmjax.training.heartbeat.heartbeat import Heartbeat
from mmjax.training.heartbeat.op_stragglers import RecordedStep, find_slow_op
from mmjax.training.metrics.step_timeline_file import write_step_timeline
from sharding.simulation.timeline import Timeline

_LOG = logging.getLogger(__name__)

RECORDED_STEP = 5
"""Step of each call of `Trainer.fit` whose timeline is recorded, after the warm-up; of a shorter call, its last."""

RECORDING_INTERVAL = 1000
"""Steps between later recordings, which are compared with the first to find ops that have become slower."""


class StepRecordings:
    """The recorded steps of one call of `Trainer.fit`.

    Args:
        workdir: Folder of the run, which keeps the newest timeline; None to record no step.
        devices: The devices by the numbers of the plan.
        heartbeat: The heartbeat, which knows the names of processes.
        first_step: Steps done before the call.
        last_step: Steps done after it.
    """

    def __init__(
        self,
        workdir: pathlib.Path | None,
        devices: Sequence[jax.Device],
        heartbeat: Heartbeat,
        first_step: int,
        last_step: int,
    ) -> None:
        self._workdir, self._devices, self._heartbeat = workdir, devices, heartbeat
        self._next = min(first_step + RECORDED_STEP, last_step)
        self._first: RecordedStep | None = None

    def is_due(self, step: int) -> bool:
        """Whether a step is to be recorded."""
        return self._workdir is not None and step == self._next

    def keep(self, step: int, timeline: Timeline | None, capacities: Mapping[str, tuple[int | None, ...]]) -> None:
        """Writes the timeline of a step that was due, and warns of ops that have become slower; process 0 alone does.

        Args:
            step: The step.
            timeline: When each of its ops ran; None if the recording failed.
            capacities: `PlacedBatch.capacities` of its batch.
        """
        self._next += RECORDING_INTERVAL
        if timeline is None or self._workdir is None or jax.process_index() != 0:
            return
        try:
            write_step_timeline(self._workdir, step, timeline)
        except OSError as error:
            _LOG.warning("no timeline of step %d: %s", step, error)
        else:
            self._warn_of_slow_op(RecordedStep(step, timeline, capacities))

    def _warn_of_slow_op(self, recorded: RecordedStep) -> None:
        """Compares a recorded step with the first one of this call."""
        if self._first is None:
            self._first = recorded
        elif slow := find_slow_op(self._first, recorded):
            process = self._devices[slow.devices[0]].process_index
            _LOG.warning(
                "%s is a straggler: %s takes its devices %s %.3g s in step %d, %.3g times the %.3g s of step %d",
                self._heartbeat.name(process),
                slow.op,
                ", ".join(map(str, slow.devices)),
                slow.after,
                recorded.step,
                slow.after / max(slow.before, 1e-9),
                slow.before,
                self._first.step,
            )
