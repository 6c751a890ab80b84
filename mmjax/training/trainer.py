"""The training loop: one screen, with its invariants as comments."""

import collections
import dataclasses
import pathlib
import time
from typing import Any

import jax
import numpy as np

from configs.errors import UserError
from data.packing.batch_spec import global_batch_spec
from data.packing.global_batch import GlobalBatch
from data.packing.pipeline import evaluation_batches
from mmjax.training.batches import open_batches, row_order_request
from mmjax.training.checkpoints.manager import CheckpointManager, refuse_existing_checkpoints
from mmjax.training.checkpoints.preemption import PreemptionWatcher
from mmjax.training.config import TrainConfig
from mmjax.training.engine.engine import Engine
from mmjax.training.engine.optimizer import learning_rate_schedule
from mmjax.training.evaluation import AnswerScore, evaluate_answers
from mmjax.training.metrics.flops import full_batch_flops
from mmjax.training.metrics.progress import ProgressDisplay
from mmjax.training.metrics.step_report import TokenCounts, make_step_report, sum_counts
from mmjax.training.metrics.step_timer import StepTimer
from mmjax.training.metrics.writers import MetricsWriter
from mmjax.weights.initialization import parameter_initializer
from sharding.plans.plan import Plan
from sharding.runtime.communication_check import check_communication
from sharding.runtime.executor import TrainState
from sharding.runtime.global_reduction import StepSummary

MAX_STEPS_IN_FLIGHT = 2
"""Steps dispatched before the oldest is waited for: devices need not wait for the host, and memory stays bounded."""


class NonFiniteStepError(UserError):
    """A loss or a gradient was not finite; the checkpoint that was written holds the state before that step."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainResult:
    """How a run ended.

    Attributes:
        step: Steps done, those of earlier runs in the workdir included.
        seconds: Wall time of this run's steps, compilation included.
        losses: By name, at the last step.
        score: On the split `test`; None if the run was interrupted or the data set has no questions.
        counts: Real tokens (patches, frames, images) and capacity of each module, over this run's steps.
        interrupted: Whether SIGTERM ended it.
        data_counters: How many samples the data pipeline handed out and refused.
    """

    step: int
    seconds: float
    losses: dict[str, float]
    score: AnswerScore | None
    counts: dict[str, tuple[int, int]]
    interrupted: bool
    data_counters: dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _DispatchedStep:
    """A step that the devices work on: its number, its summary on the devices, its batch, and the data state before."""

    step: int
    summary: StepSummary
    batch: GlobalBatch
    data_state: dict[str, Any]


class Trainer:
    """A configured run on a plan, ready to start or to resume.

    Args:
        config: The run.
        plan: The placement of the model.
        workdir: Folder of the run; its checkpoints go to `checkpoints/` there.
        resume: Whether to continue from the newest whole checkpoint.

    Raises:
        UserError: The workdir holds checkpoints and `resume` is not set, or the other way round.
        PlanError: The plan cannot hold the model or the batch.
        DataError: The data set does not fit the model or the data configuration.
    """

    def __init__(self, config: TrainConfig, plan: Plan, workdir: pathlib.Path, resume: bool) -> None:
        self.config = config
        if not resume:
            refuse_existing_checkpoints(workdir / "checkpoints")
        self._initializer = (
            None if resume else parameter_initializer(config.model, config.seed, config.pretrained_weights)
        )
        dataset = config.dataset("train")
        self.tokenizer, self.prompt_format = dataset.tokenizer, dataset.prompt_format
        batch_spec = global_batch_spec(config.data, config.model)
        self.engine = Engine(config.model, plan, batch_spec.arrays, config.engine_settings)
        local_rows = self.engine.local_rows(config.data.rows)
        row_order = row_order_request(config, plan, jax.devices()[0].device_kind)
        self.batches = open_batches(
            config, dataset, row_order, local_rows if len(local_rows) < config.data.rows else None
        )
        self.checkpoints = CheckpointManager(workdir / "checkpoints", config.model, config.max_checkpoints_to_keep)
        self.step, self.state = 0, None
        if resume:
            self.state, data_state, self.step = self.checkpoints.restore(self.engine)
            self.batches.set_state(data_state)
        self._full_batch_flops = full_batch_flops(self.engine.modules, batch_spec.arrays, jax.devices()[0].device_kind)

    def run(self, progress: ProgressDisplay, metrics: MetricsWriter) -> TrainResult:
        """Trains to the configured number of steps, evaluates, and leaves a checkpoint.

        Raises:
            NonFiniteStepError: Names the step and its samples.
            CommunicationError: Two stages cannot exchange arrays; names them.
        """
        config, engine = self.config, self.engine
        begin = time.perf_counter()
        check_communication(engine.executor)
        state: TrainState = self.state or engine.initial_state(self._initializer)
        self.state = None  # the first step donates it
        step = self.step
        timer, in_flight = StepTimer(), collections.deque[_DispatchedStep]()
        window: list[TokenCounts] = []  # counts of the steps since the last report
        counts: dict[str, tuple[int, int]] = {}  # of all steps reported
        last: _DispatchedStep | None = None  # the newest step that is known to be finite

        with PreemptionWatcher() as preemption:
            while step < config.steps and not preemption.stop_requested(step):
                with timer.part("data"):
                    data_state = self.batches.get_state()
                    batch = next(self.batches)
                with timer.part("dispatch"):
                    state, summary = engine.executor.step(state, engine.place_batch(batch.arrays, step))
                step += 1
                in_flight.append(_DispatchedStep(step=step, summary=summary, batch=batch, data_state=data_state))
                window.append(batch.counts)
                with timer.part("device"):
                    # Only a step that is MAX_STEPS_IN_FLIGHT old is waited for, so the devices always have work.
                    while len(in_flight) > MAX_STEPS_IN_FLIGHT:
                        last = self._wait_for(in_flight.popleft(), state)
                timer.end_step()
                if step % config.log_interval == 0 or step == config.steps:
                    with timer.part("device"):
                        last = self._wait_for_all(in_flight, state) if step == config.steps else last
                    counts = sum_counts([counts, *window])
                    self._report(last, window, timer, progress, metrics)
                    window = []
                if step % config.checkpoint_interval == 0 and step < config.steps:
                    # A checkpoint holds finite states alone, so all steps before it are waited for.
                    last = self._wait_for_all(in_flight, state) or last
                    self.checkpoints.save(step, engine, state, self.batches.get_state())
                if config.evaluation_interval and step % config.evaluation_interval == 0 and step < config.steps:
                    _write_score(metrics, step, self._evaluate(state))
            interrupted = step < config.steps
            last = self._wait_for_all(in_flight, state) or last
            self.checkpoints.save(step, engine, state, self.batches.get_state())
            self.checkpoints.wait()

        seconds = time.perf_counter() - begin
        score = None if interrupted else self._evaluate(state)
        _write_score(metrics, step, score)
        return TrainResult(
            step=step,
            seconds=seconds,
            losses=engine.losses_by_name(last.summary) if last else {},
            score=score,
            counts=sum_counts([counts, *window]),
            interrupted=interrupted,
            data_counters=self.batches.counters(),
        )

    def close(self) -> None:
        """Ends the data pipeline's threads and the writing of checkpoints."""
        self.batches.close()
        self.checkpoints.close()

    # ------------------------------------------------------------------ what the loop calls

    def _wait_for(self, dispatched: _DispatchedStep, state: TrainState) -> _DispatchedStep:
        """Waits for a step. If it was not finite, the devices have kept the state before it: saves that and raises."""
        summary = dispatched.summary
        if float(summary.all_finite) > 0:
            return dispatched
        steps_before = dispatched.step - 1
        self.checkpoints.save(steps_before, self.engine, state, dispatched.data_state)
        self.checkpoints.wait()
        samples = sorted({int(sample) for sample in dispatched.batch.sample_ids.flat if sample >= 0})
        raise NonFiniteStepError(
            f"step {dispatched.step}: losses {self.engine.losses_by_name(summary)}, "
            f"gradient norm {float(summary.gradient_norm)}; "
            f"no parameter was changed by it, and the state after step {steps_before} is saved. Its samples: {samples}"
        )

    def _wait_for_all(self, in_flight: collections.deque[_DispatchedStep], state: TrainState) -> _DispatchedStep | None:
        """Waits for every step in flight, and returns the last; None if there is none."""
        last = None
        while in_flight:
            last = self._wait_for(in_flight.popleft(), state)
        return last

    def _report(
        self,
        last: _DispatchedStep | None,
        window: list[TokenCounts],
        timer: StepTimer,
        progress: ProgressDisplay,
        metrics: MetricsWriter,
    ) -> None:
        if last is None:
            return
        counts = sum_counts(window)
        schedule = learning_rate_schedule(self.config.optimizer, self.config.steps)
        report = make_step_report(
            last.step,
            self.engine.losses_by_name(last.summary),
            timer.take_window(),
            counts,
            self._full_batch_flops,
            [device.device_kind for device in self.engine.plan_devices],
            self.config.model.backbone.name,
            {
                **{f"tokens/{module}/real": float(real) for module, (real, _) in counts.items()},
                **{f"tokens/{module}/padding": float(capacity - real) for module, (real, capacity) in counts.items()},
                "gradient_norm": float(last.summary.gradient_norm),
                "learning_rate": float(np.asarray(schedule(last.step - 1))),
            },
        )
        progress.update(report)
        metrics.write(report.step, report.scalars())

    def _evaluate(self, state: TrainState) -> AnswerScore | None:
        """The score on the split `test`; None where the data set has no questions to score."""
        dataset = self.config.dataset("test")
        if not dataset.evaluated_kinds:
            return None
        batches = evaluation_batches(self.config.data, self.config.model, dataset)
        try:
            return evaluate_answers(self.engine, state, batches)
        finally:
            batches.close()


def _write_score(metrics: MetricsWriter, step: int, score: AnswerScore | None) -> None:
    if score is not None:
        metrics.write(step, {"accuracy": score.accuracy})


def describe_devices() -> str:
    """The devices of this run in words, such as `8 x cpu, 1 process(es)`."""
    devices = jax.devices()
    return f"{len(devices)} x {devices[0].device_kind}, {jax.process_count()} process(es)"
