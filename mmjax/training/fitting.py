"""The training loop: one screen, with its invariants as comments."""

import collections
import contextlib
import dataclasses
import functools
import logging
import pathlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax

from configs.short_repr import short_repr
from data.packing.phases.item_tables import PhaseCapacityError
from mmjax.training.engine.compilation import compile_step
from mmjax.training.engine.step_recorder import StepNotRecordedError, StepRecorder
from mmjax.training.evaluation import AnswerScore, EvaluationStoppedError
from mmjax.training.heartbeat.op_stragglers import RecordedStep, find_slow_op
from mmjax.training.item_agreement import ItemDisagreementError
from mmjax.training.metrics.activity import COMPILING
from mmjax.training.metrics.interface import MetricsWriter
from mmjax.training.metrics.progress import ProgressDisplay
from mmjax.training.metrics.step_report import StepReport, TokenCounts, make_step_report, sum_counts
from mmjax.training.metrics.step_timeline_file import write_step_timeline
from mmjax.training.metrics.step_timer import StepTimer, StepTimes
from mmjax.training.refused_batches import saving_before_a_refused_batch, warn_of_small_capacities
from mmjax.training.rescheduling.rescheduler import OrderSwap, Rescheduler
from mmjax.training.steps import DispatchedStep
from mmjax.training.stop_signals import StoppedBeforeFirstStepError, StopSignals

if TYPE_CHECKING:  # it imports this file
    from mmjax.training.trainer import Trainer

_LOG = logging.getLogger(__name__)

MAX_STEPS_IN_FLIGHT = 2
"""Steps dispatched before the oldest is waited for: devices need not wait for the host, and memory stays bounded."""

RECORDED_STEP = 5
"""Step of each call of `Trainer.fit` whose timeline is recorded: the first ones warm up. A shorter call's last one."""

RECORDING_INTERVAL = 1000
"""Steps between later recordings, which are compared with the first to find ops that have become slower."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainResult:
    """How a call of `Trainer.fit` ended.

    Attributes:
        step: Steps done, those of earlier runs in the workdir included.
        steps_of_this_run: Steps that this call trained.
        seconds: Wall time, with compilation, evaluations and checkpoints.
        compile_seconds: The part of it before the first step, which is nearly all compilation.
        step_seconds: The part of it that the steps took.
        losses: By name: means over the last window of steps; it ends early if the run was interrupted.
        score: On the split `test`; None if the run was interrupted, the data set has no questions, or the items of an
            evaluation's batch did not fit into the rows of a unit.
        counts: Real tokens (patches, frames, images) and capacity of each module, over this call's steps.
        order_swaps: At which steps the order of ops was swapped (`TrainConfig.rescheduling`).
        stopped_by: What interrupted it, `Ctrl-C` or `SIGTERM`; empty if it trained to its end.
        data_counters: How many samples the data pipeline handed out and refused.
    """

    step: int
    steps_of_this_run: int
    seconds: float
    compile_seconds: float
    step_seconds: float
    losses: dict[str, float]
    score: AnswerScore | None
    counts: TokenCounts
    order_swaps: tuple[OrderSwap, ...]
    stopped_by: str
    data_counters: dict[str, Any]

    __repr__ = short_repr


class Fitting:
    """One call of `Trainer.fit`.

    Args:
        trainer: The run.
        progress: Shows each window of steps.
        metrics: Keeps each window of steps.
        on_evaluation: Called after every evaluation.
    """

    def __init__(
        self,
        trainer: "Trainer",
        progress: ProgressDisplay,
        metrics: MetricsWriter,
        on_evaluation: "Callable[[Trainer], None] | None",
    ) -> None:
        self._trainer, self._progress, self._metrics, self._on_evaluation = trainer, progress, metrics, on_evaluation
        self._begin, self._first_step = time.perf_counter(), trainer.steps_done
        self._recorded_step = min(self._first_step + RECORDED_STEP, trainer.config.steps)
        self._first_recording: RecordedStep | None = None
        self._compile_seconds = self._step_seconds = 0.0
        self._rescheduler = Rescheduler(
            trainer.engine, trainer.config.rescheduling, self._first_step, trainer.config.progress_timeout
        )
        self._order_swaps: list[OrderSwap] = []
        self._heartbeat = trainer.heartbeat
        self._timer, self._in_flight = StepTimer(), collections.deque[DispatchedStep]()
        self._times: dict[int, StepTimes] = {}  # of windows whose last step is dispatched, but not yet finished
        self._counts: TokenCounts = {}  # of all finished steps
        self._losses: dict[str, float] = {}
        self._score: AnswerScore | None = None

    def run(self) -> TrainResult:
        """Trains the steps that are left, evaluates, and says how it went."""
        trainer = self._trainer
        with (
            self._heartbeat.reporting_errors(),
            self._heartbeat.phase("training"),
            self._rescheduler,
            StopSignals() as stop,
            contextlib.suppress(StoppedBeforeFirstStepError),
            saving_before_a_refused_batch(trainer, functools.partial(self._finish_until, 0)),
        ):
            self._train(stop)
        return TrainResult(
            step=trainer.steps_done,
            steps_of_this_run=trainer.steps_done - self._first_step,
            seconds=time.perf_counter() - self._begin,
            compile_seconds=self._compile_seconds,
            step_seconds=self._step_seconds,
            losses=self._losses,
            score=self._score,
            counts=self._counts,
            order_swaps=tuple(self._order_swaps),
            stopped_by=stop.reason if trainer.steps_done < trainer.config.steps or trainer.evaluation_is_due else "",
            data_counters=trainer.batches.counters(),
        )

    def _train(self, stop: StopSignals) -> None:
        trainer, config = self._trainer, self._trainer.config
        if trainer.steps_done < config.steps:
            with stop.leaving_at_once():
                self._prepare()
            if trainer.evaluation_is_due:
                self._evaluate(stop)
        while trainer.steps_done < config.steps and not stop.requested():
            next_step = trainer.steps_done + 1
            timeline_is_due = trainer.workdir is not None and next_step == self._recorded_step
            if timeline_is_due or self._rescheduler.records(next_step):
                self._record_step()
            else:
                self._in_flight.append(trainer.dispatch_step(self._timer))
                # Only a step that is MAX_STEPS_IN_FLIGHT old is waited for, so the devices always have work.
                self._finish_until(MAX_STEPS_IN_FLIGHT)
                self._timer.end_step()
            step = trainer.steps_done
            if step % config.log_interval == 0 and step < config.steps:
                times = self._times[step] = self._timer.take_window()
                self._heartbeat.window_finished(step, times.wall, times.data, times.dispatch)
            self._swap_order(step)
            # A run that resumes does not evaluate at its checkpoint, so the checkpoint comes after the evaluation.
            if config.evaluation_interval and step % config.evaluation_interval == 0 and step < config.steps:
                self._evaluate(stop)
            if step % config.checkpoint_interval == 0 and step < config.steps:
                self._save()
        self._save()
        if trainer.window.steps and trainer.steps_done > self._first_step:
            # The run was stopped between two reports. The checkpoint has the window, so no metrics are written of it.
            self._show(self._make_report(trainer.steps_done))
        if trainer.checkpoints:
            with self._heartbeat.phase("saving"):
                trainer.checkpoints.wait()
        if trainer.steps_done == config.steps:
            self._evaluate(stop)
            if trainer.checkpoints:
                with self._heartbeat.phase("saving"):
                    trainer.checkpoints.wait_for_remote()

    def _prepare(self) -> None:
        """Compiles and makes the state: this time belongs to no step."""

        def show(done: int, total: int | None) -> None:
            self._heartbeat.progressed()
            self._progress.show(COMPILING, done, total)

        warn_of_small_capacities(self._trainer.engine.dealt_phases, self._trainer.config.data.rows)
        with self._timer.excluded(), self._heartbeat.phase("compiling"):
            compile_step(self._trainer.engine, show)
            _ = self._trainer.state
        self._compile_seconds = time.perf_counter() - self._begin

    def _record_step(self) -> None:
        """Trains a step between two that are waited for, and uses its timeline; its time is left out of the means."""
        self._finish_until(0)
        recorder = StepRecorder(self._trainer.engine)
        with self._timer.left_out_step():
            self._in_flight.append(self._trainer.dispatch_step(StepTimer(), recorder))
        with self._timer.excluded():
            step, timeline = self._trainer.steps_done, None
            try:
                timeline = recorder.timeline()
            except StepNotRecordedError as error:  # what the run can do without
                _LOG.warning("no timeline of step %d: %s", step, error)
            if timeline is not None and self._rescheduler.records(step):
                self._rescheduler.reconsider(step, timeline)
            if step == self._recorded_step:
                self._recorded_step += RECORDING_INTERVAL
                if timeline is not None and self._trainer.workdir and jax.process_index() == 0:
                    self._keep_timeline(self._trainer.workdir, RecordedStep(step, timeline, recorder.capacities))

    def _keep_timeline(self, workdir: pathlib.Path, recorded: RecordedStep) -> None:
        """Writes the timeline of a step, and warns of ops that have become slower."""
        try:
            write_step_timeline(workdir, recorded.step, recorded.timeline)
        except OSError as error:
            _LOG.warning("no timeline of step %d: %s", recorded.step, error)
        else:
            self._warn_of_slow_op(recorded)

    def _swap_order(self, step: int) -> None:
        """Lets the steps after this one run in the order that the last recording has led to, if it is time."""
        with self._timer.excluded():
            swap = self._rescheduler.swap(step)
        if swap is None:
            return
        self._finish_until(0)  # their metrics come before
        self._order_swaps.append(swap)
        self._metrics.write(step, {"order_swap/before": swap.before, "order_swap/after": swap.after})

    def _warn_of_slow_op(self, recorded: RecordedStep) -> None:
        """Compares a recorded step with the first one of this call."""
        if self._first_recording is None:
            self._first_recording = recorded
            return
        if slow := find_slow_op(self._first_recording, recorded):
            process = self._trainer.engine.devices[slow.devices[0]].process_index
            _LOG.warning(
                "%s is a straggler: %s takes its devices %s %.3g s in step %d, %.3g times the %.3g s of step %d",
                self._heartbeat.name(process),
                slow.op,
                ", ".join(map(str, slow.devices)),
                slow.after,
                recorded.step,
                slow.after / max(slow.before, 1e-9),
                slow.before,
                self._first_recording.step,
            )

    def _finish_until(self, most_in_flight: int) -> None:
        """Waits for the oldest steps until so many are in flight; each is reported once, in order."""
        config = self._trainer.config
        while len(self._in_flight) > most_in_flight:
            dispatched = self._in_flight.popleft()
            with self._timer.part("device"):
                result = self._trainer.finish_step(dispatched)
            self._counts = sum_counts([self._counts, dispatched.batch.real_and_capacity])
            if result.step % config.log_interval == 0 or result.step == config.steps:
                self._report(result.step)

    def _save(self) -> None:
        """A checkpoint holds finite states alone, so all steps before it are waited for."""
        self._finish_until(0)
        if self._trainer.checkpoints:
            self._trainer.save()

    def _evaluate(self, stop: StopSignals) -> None:
        """Scores the state between two steps, whose times do not contain it; a run that is resumed makes up for it."""
        self._finish_until(0)
        trainer = self._trainer
        with self._timer.excluded(), self._heartbeat.phase("evaluating"):
            try:
                self._score = trainer.evaluate(self._progress, stop.requested)
            except EvaluationStoppedError:
                self._score, trainer.evaluation_is_due = None, True
                return
            except ItemDisagreementError:
                trainer.evaluation_is_due = True
                raise
            except PhaseCapacityError as error:  # the data of evaluations is another than that of training
                self._score = None
                _LOG.warning("no evaluation after step %d: %s", trainer.steps_done, error)
                return
            trainer.evaluation_is_due = False
            if self._score is not None:
                self._metrics.write(trainer.steps_done, self._score.scalars(trainer.config.model.backbone.name))
            if self._on_evaluation:
                self._on_evaluation(trainer)

    def _report(self, step: int) -> None:
        """Shows and keeps the window of steps that ends with this one, and starts the next."""
        report = self._make_report(step)
        self._show(report)
        self._metrics.write(step, report.scalars())
        self._trainer.window.clear()

    def _show(self, report: StepReport) -> None:
        self._progress.update(report)
        self._step_seconds += report.times.steps * report.times.wall
        self._losses = dict(report.losses)

    def _make_report(self, step: int) -> StepReport:
        """The report of the window of steps that ends with this one."""
        trainer, window = self._trainer, self._trainer.window
        counts = window.counts
        return make_step_report(
            step,
            window.losses,
            self._times.pop(step, None) or self._timer.take_window(),
            counts,
            window.steps,
            trainer.value_flops,
            [device.device_kind for device in trainer.engine.plan_devices],
            trainer.config.model.backbone.name,
            {
                **{f"tokens/{module}/real": float(real) for module, (real, _) in counts.items()},
                **{f"tokens/{module}/padding": float(capacity - real) for module, (real, capacity) in counts.items()},
                "gradient_norm": window.gradient_norm,
                **trainer.engine.part_optimizers.learning_rates(step - 1),
            },
        )
