"""The training loop of `Trainer.fit`: one screen, with its invariants as comments."""

import collections
import contextlib
import dataclasses
import functools
import logging
import time
from collections.abc import Callable
from typing import Any

from configs.common.short_repr import short_repr
from data.packing.phases.item_tables import PhaseCapacityError
from mmjax.training.engine.compilation import compile_step
from mmjax.training.engine.step_recorder import StepNotRecordedError, StepRecorder
from mmjax.training.evaluation import AnswerScore, EvaluationStoppedError
from mmjax.training.heartbeat.item_agreement import ItemDisagreementError
from mmjax.training.metrics.activity import COMPILING
from mmjax.training.metrics.interface import MetricsWriter
from mmjax.training.metrics.progress import ProgressDisplay
from mmjax.training.metrics.step_recordings import StepRecordings
from mmjax.training.metrics.step_report import StepReport, TokenCounts, make_step_report, sum_counts
from mmjax.training.metrics.step_timer import StepTimer, StepTimes
from mmjax.training.refused_batches import saving_before_a_refused_batch, warn_of_small_capacities
from mmjax.training.rescheduling.rescheduler import OrderSwap, Rescheduler
from mmjax.training.steps import DispatchedStep
from mmjax.training.stop_signals import StoppedBeforeFirstStepError, StopSignals
from mmjax.training.training_run import TrainingRun

_LOG = logging.getLogger(__name__)

MAX_STEPS_IN_FLIGHT = 2
"""Steps dispatched before the oldest is waited for: devices need not wait for the host, and memory stays bounded."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainResult:
    """The result of a call of `Trainer.fit`.

    Attributes:
        step: Number of steps done, including earlier runs in the workdir.
        steps_of_this_run: Number of steps that this call trained.
        seconds: Wall time, with compilation, evaluations and checkpoints.
        compile_seconds: Wall time before the first step, which is nearly all compilation.
        step_seconds: Wall time of the steps.
        losses: Means over the last window of steps, by name; it ends early if the run was interrupted.
        score: Score on the split `test`; None if the run was interrupted, the data set has no questions, or the items
            of an evaluation's batch did not fit into the rows of a unit.
        counts: Real tokens (patches, frames, images) and capacity of each module, over this call's steps.
        order_swaps: At which steps the order of ops was swapped (`TrainConfig.rescheduling`).
        stopped_by: The interrupting signal, `Ctrl-C` or `SIGTERM`; empty if it trained to its end.
        data_counters: Numbers of samples that the data pipeline returned and refused.
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


class TrainLoop:
    """The loop of one call of `Trainer.fit`.

    Args:
        run: The run.
        progress: Shows each window of steps.
        metrics: Keeps each window of steps.
        on_evaluation: Called after every evaluation.
    """

    def __init__(
        self,
        run: TrainingRun,
        progress: ProgressDisplay,
        metrics: MetricsWriter,
        on_evaluation: Callable[[], object] | None,
    ) -> None:
        self._run, self._progress, self._metrics, self._on_evaluation = run, progress, metrics, on_evaluation
        self._begin, self._first_step = time.perf_counter(), run.steps_done
        self._recordings = StepRecordings(
            run.workdir, run.engine.devices, run.heartbeat, self._first_step, run.config.steps
        )
        self._compile_seconds = self._step_seconds = 0.0
        self._rescheduler = Rescheduler(
            run.engine, run.config.rescheduling, self._first_step, run.config.progress_timeout
        )
        self._order_swaps: list[OrderSwap] = []
        self._heartbeat = run.heartbeat
        self._timer, self._in_flight = StepTimer(), collections.deque[DispatchedStep]()
        self._times: dict[int, StepTimes] = {}  # of windows whose last step is dispatched, but not yet finished
        self._counts: TokenCounts = {}  # of all finished steps
        self._losses: dict[str, float] = {}
        self._score: AnswerScore | None = None

    def run(self) -> TrainResult:
        """Trains the steps that are left, evaluates, and returns the result."""
        run = self._run
        with (
            self._heartbeat.reporting_errors(),
            self._heartbeat.phase("training"),
            self._rescheduler,
            StopSignals() as stop,
            contextlib.suppress(StoppedBeforeFirstStepError),
            saving_before_a_refused_batch(run, functools.partial(self._finish_until, 0)),
        ):
            self._train(stop)
        return TrainResult(
            step=run.steps_done,
            steps_of_this_run=run.steps_done - self._first_step,
            seconds=time.perf_counter() - self._begin,
            compile_seconds=self._compile_seconds,
            step_seconds=self._step_seconds,
            losses=self._losses,
            score=self._score,
            counts=self._counts,
            order_swaps=tuple(self._order_swaps),
            stopped_by=stop.reason if run.steps_done < run.config.steps or run.evaluation_is_due else "",
            data_counters=run.batches.counters(),
        )

    def _train(self, stop: StopSignals) -> None:
        run, config = self._run, self._run.config
        if run.steps_done < config.steps:
            with stop.leaving_at_once():
                self._prepare()
            if run.evaluation_is_due:
                self._evaluate(stop)
        while run.steps_done < config.steps and not stop.requested():
            next_step = run.steps_done + 1
            if self._recordings.is_due(next_step) or self._rescheduler.records(next_step):
                self._record_step()
            else:
                self._in_flight.append(run.dispatch_step(self._timer))
                # Only a step that is MAX_STEPS_IN_FLIGHT old is waited for, so the devices always have work.
                self._finish_until(MAX_STEPS_IN_FLIGHT)
                self._timer.end_step()
            step = run.steps_done
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
        if run.window.steps and run.steps_done > self._first_step:
            # The run was stopped between two reports. The checkpoint has the window, so no metrics are written of it.
            self._show(self._make_report(run.steps_done))
        if run.checkpoints:
            with self._heartbeat.phase("saving"):
                run.checkpoints.wait()
        if run.steps_done == config.steps:
            self._evaluate(stop)
            if run.checkpoints:
                with self._heartbeat.phase("saving"):
                    run.checkpoints.wait_for_remote()

    def _prepare(self) -> None:
        """Compiles and makes the state: this time belongs to no step."""

        def show(done: int, total: int | None) -> None:
            self._heartbeat.progressed()
            self._progress.show(COMPILING, done, total)

        warn_of_small_capacities(self._run.engine.dealt_phases, self._run.config.data.rows)
        with self._timer.excluded(), self._heartbeat.phase("compiling"):
            compile_step(self._run.engine, show)
            _ = self._run.state
        self._compile_seconds = time.perf_counter() - self._begin

    def _record_step(self) -> None:
        """Trains a step between two that are waited for, and uses its timeline; its time is left out of the means."""
        self._finish_until(0)
        recorder = StepRecorder(self._run.engine)
        with self._timer.left_out_step():
            self._in_flight.append(self._run.dispatch_step(StepTimer(), recorder))
        with self._timer.excluded():
            step, timeline = self._run.steps_done, None
            try:
                timeline = recorder.timeline()
            except StepNotRecordedError as error:  # the run can do without the recording
                _LOG.warning("no timeline of step %d: %s", step, error)
            if timeline is not None and self._rescheduler.records(step):
                self._rescheduler.reconsider(step, timeline)
            if self._recordings.is_due(step):
                self._recordings.keep(step, timeline, recorder.capacities)

    def _swap_order(self, step: int) -> None:
        """Lets the steps after this one run in the order that the last recording has led to, if it is time."""
        with self._timer.excluded():
            swap = self._rescheduler.swap(step)
        if swap is None:
            return
        self._finish_until(0)  # their metrics come before
        self._order_swaps.append(swap)
        self._metrics.write(step, {"order_swap/before": swap.before, "order_swap/after": swap.after})

    def _finish_until(self, most_in_flight: int) -> None:
        """Waits for the oldest steps until at most `most_in_flight` are in flight; each is reported once, in order."""
        config = self._run.config
        while len(self._in_flight) > most_in_flight:
            dispatched = self._in_flight.popleft()
            with self._timer.part("device"):
                result = self._run.finish_step(dispatched)
            self._counts = sum_counts([self._counts, dispatched.batch.real_and_capacity])
            if result.step % config.log_interval == 0 or result.step == config.steps:
                self._report(result.step)

    def _save(self) -> None:
        """A checkpoint holds finite states alone, so all steps before it are waited for."""
        self._finish_until(0)
        if self._run.checkpoints:
            self._run.save()

    def _evaluate(self, stop: StopSignals) -> None:
        """Scores the state between two steps, whose times do not contain it; a run that is resumed makes up for it."""
        self._finish_until(0)
        run = self._run
        with self._timer.excluded(), self._heartbeat.phase("evaluating"):
            try:
                self._score = run.evaluate(self._progress, stop.requested)
            except EvaluationStoppedError:
                self._score, run.evaluation_is_due = None, True
                return
            except ItemDisagreementError:
                run.evaluation_is_due = True
                raise
            except PhaseCapacityError as error:  # evaluations have other data than training
                self._score = None
                _LOG.warning("no evaluation after step %d: %s", run.steps_done, error)
                return
            run.evaluation_is_due = False
            if self._score is not None:
                self._metrics.write(run.steps_done, self._score.scalars(run.config.model.backbone.name))
            if self._on_evaluation:
                self._on_evaluation()

    def _report(self, step: int) -> None:
        """Shows and keeps the window of steps that ends with this one, and starts the next."""
        report = self._make_report(step)
        self._show(report)
        self._metrics.write(step, report.scalars())
        self._run.window.clear()

    def _show(self, report: StepReport) -> None:
        self._progress.update(report)
        self._step_seconds += report.times.steps * report.times.wall
        self._losses = dict(report.losses)

    def _make_report(self, step: int) -> StepReport:
        """The report of the window of steps that ends with this one."""
        run, window = self._run, self._run.window
        counts = window.counts
        return make_step_report(
            step,
            window.losses,
            self._times.pop(step, None) or self._timer.take_window(),
            counts,
            window.steps,
            run.value_flops,
            [device.device_kind for device in run.engine.plan_devices],
            run.config.model.backbone.name,
            {
                **{f"tokens/{module}/real": float(real) for module, (real, _) in counts.items()},
                **{f"tokens/{module}/padding": float(capacity - real) for module, (real, capacity) in counts.items()},
                "gradient_norm": window.gradient_norm,
                **run.engine.part_optimizers.learning_rates(step - 1),
            },
            fp8=run.config.model.uses_fp8,
        )
