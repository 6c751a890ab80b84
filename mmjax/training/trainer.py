"""The training loop: one screen, with what it keeps true as comments."""

import collections
import dataclasses
import pathlib
import time
from typing import Any

import jax

from configs.errors import UserError
from data.packing.global_batch import GlobalBatch
from data.packing.pipeline import BatchIterator, evaluation_batches
from mmjax.training.batches import open_batches
from mmjax.training.checkpoints.manager import CheckpointManager, refuse_existing_checkpoints
from mmjax.training.checkpoints.preemption import PreemptionWatcher
from mmjax.training.config import TrainConfig
from mmjax.training.engine.engine import Engine
from mmjax.training.engine.optimizer import learning_rate_schedule
from mmjax.training.evaluation import AnswerScore, evaluate_answers
from mmjax.training.metrics.model_flops import full_batch_flops
from mmjax.training.metrics.progress import Progress
from mmjax.training.metrics.step_report import MetricsWriter, make_step_report, sum_counts
from mmjax.training.metrics.step_timer import StepTimer
from mmjax.training.reordering import make_reordering
from mmjax.weights.initialization import parameter_initializer
from sharding.plans.plan import Plan
from sharding.runtime.communication_check import check_communication
from sharding.runtime.executor import TrainState
from sharding.runtime.global_reduction import StepSummary

MAX_STEPS_IN_FLIGHT = 2
"""Steps dispatched before the oldest is waited for: the devices never wait for the host, nor memory for the devices."""


class NonFiniteStepError(UserError):
    """A loss or gradient was not finite; the checkpoint that was written holds the state before that step."""


@dataclasses.dataclass(frozen=True)
class TrainResult:
    """How a run ended.

    Attributes:
        step: Steps done, earlier runs of the workdir included.
        seconds: Wall time of this run's steps, compilation included.
        losses: By module, at the last step.
        score: On the test split; None if the run was interrupted.
        counts: Real tokens and capacity by phase, over this run's steps.
        interrupted: Whether SIGTERM ended it.
        counters: What the data pipeline handed out and refused.
    """

    step: int
    seconds: float
    losses: dict[str, float]
    score: AnswerScore | None
    counts: dict[str, tuple[int, int]]
    interrupted: bool
    counters: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class _Flying:
    """A step that was dispatched and not yet read: its decision, its batch, and the data's state before it."""

    step: int
    decision: StepSummary
    batch: GlobalBatch
    data_state: dict[str, Any]


class Trainer:
    """A configured run on a plan, ready to start or to resume.

    Args:
        config: The run.
        plan: Where the model lies.
        workdir: Where checkpoints go.
        resume: Whether to continue from the newest whole checkpoint.

    Raises:
        UserError: The workdir holds checkpoints and `resume` is not set, or the other way round.
    """

    def __init__(self, config: TrainConfig, plan: Plan, workdir: pathlib.Path, resume: bool) -> None:
        self.config = config
        if not resume:
            refuse_existing_checkpoints(workdir / "checkpoints")
        self.initial = None if resume else parameter_initializer(config.model, config.seed, config.pretrained_weights)
        source = config.source("train")
        self.tokenizer, self.prompting = source.tokenizer, source.prompt_format
        self.reordering = make_reordering(config, plan, jax.devices()[0].device_kind)
        self.batches: BatchIterator = open_batches(config, source, self.reordering.producer_request)
        start = self.batches.get_state()
        example = next(self.batches)
        self.engine = Engine(config.model, plan, example.arrays, config.engine_settings)
        rows = self.engine.local_rows(config.data.rows)
        if len(rows) < config.data.rows and not self.reordering.needs_all_rows:
            self.batches.close()
            self.batches = open_batches(config, source, self.reordering.producer_request, rows)
        self.batches.set_state(start)
        self.checkpoints = CheckpointManager(workdir / "checkpoints", config.model, config.max_checkpoints_to_keep)
        self.step, self.state = 0, None
        if resume:
            self.state, data_state, self.step = self.checkpoints.restore(self.engine)
            self.batches.set_state(data_state)
        self._flops = full_batch_flops(self.engine, example.arrays)

    def run(self, progress: Progress, metrics: MetricsWriter) -> TrainResult:
        """Trains to the configured number of steps, evaluates, and leaves a checkpoint.

        Raises:
            NotFinite: Names the step and its samples.
        """
        config, engine = self.config, self.engine
        begin = time.perf_counter()
        check_communication(engine.executor)
        state: TrainState = self.state or engine.initial_state(self.initial)
        self.state = None  # the loop donates it
        step, window, total = self.step, [], {}
        timer, flying = StepTimer(), collections.deque()
        last: _Flying | None = None

        with PreemptionWatcher() as interrupt:
            while step < config.steps and not interrupt.stop_requested(step):
                with timer.part("data"):
                    data_state = self.batches.get_state()
                    batch = self.reordering.reorder_batch(next(self.batches))
                with timer.part("dispatch"):
                    state, decision = engine.executor.step(state, engine.place_batch(batch.arrays, step))
                step += 1
                flying.append(_Flying(step, decision, batch, data_state))
                window.append(batch.counts)
                with timer.part("device"):
                    # only a step that is IN_FLIGHT old is waited for, so reading it stops nobody
                    while len(flying) > MAX_STEPS_IN_FLIGHT:
                        last = self._landed(flying.popleft(), state)
                timer.end_step()
                if step % config.log_interval == 0 or step == config.steps:
                    with timer.part("device"):
                        last = self._land_all(flying, state) if step == config.steps else last
                    total = sum_counts([total, *window])
                    self._report(last, window, timer, progress, metrics)
                    window = []
                if step % config.checkpoint_interval == 0 and step < config.steps:
                    last = self._land_all(flying, state) or last
                    self.checkpoints.save(step, engine, state, self.batches.get_state())
                if config.evaluation_interval and step % config.evaluation_interval == 0 and step < config.steps:
                    _write_score(metrics, step, self._evaluate(state))
            interrupted = step < config.steps
            last = self._land_all(flying, state) or last
            self.checkpoints.save(step, engine, state, self.batches.get_state())
            self.checkpoints.wait()

        seconds = time.perf_counter() - begin
        score = None if interrupted else self._evaluate(state)
        _write_score(metrics, step, score)
        losses = self.engine.losses_by_name(last.decision) if last else {}
        total = sum_counts([total, *window])
        return TrainResult(step, seconds, losses, score, total, interrupted, self.batches.counters())

    def close(self) -> None:
        """Ends data threads and checkpoint writing."""
        self.batches.close()
        self.checkpoints.close()

    # ------------------------------------------------------------------ what the loop calls

    def _landed(self, flight: _Flying, state: TrainState) -> _Flying:
        """Waits for a step. If it was not finite, the devices have kept the state before it: saves that and stops."""
        if float(flight.decision.all_finite) > 0:
            return flight
        before = flight.step - 1
        self.checkpoints.save(before, self.engine, state, flight.data_state)
        self.checkpoints.wait()
        samples = sorted({int(sample) for sample in flight.batch.sample_ids.flat if sample >= 0})
        raise NonFiniteStepError(
            f"step {flight.step}: losses {self.engine.losses_by_name(flight.decision)}, "
            f"gradient norm {float(flight.decision.gradient_norm)}; "
            f"no parameter was changed by it, and the state after step {before} is saved. Its samples: {samples}"
        )

    def _land_all(self, flying: collections.deque, state: TrainState) -> _Flying | None:
        last = None
        while flying:
            last = self._landed(flying.popleft(), state)
        return last

    def _report(
        self, last: _Flying | None, window: list, timer: StepTimer, progress: Progress, metrics: MetricsWriter
    ) -> None:
        if last is None:
            return
        counts = sum_counts(window)
        others = {f"tokens/{phase}/real": float(real) for phase, (real, _) in counts.items()}
        others |= {f"tokens/{phase}/padding": float(capacity - real) for phase, (real, capacity) in counts.items()}
        others |= {
            "gradient_norm": float(last.decision.gradient_norm),
            "learning_rate": float(learning_rate_schedule(self.config.optimizer, self.config.steps)(last.step - 1)),
        }
        report = make_step_report(
            last.step,
            self.engine.losses_by_name(last.decision),
            timer.take_window(),
            counts,
            self._flops,
            [device.device_kind for device in self.engine.plan_devices],
            others,
        )
        progress.update(report)
        metrics.write(report.step, report.scalars())

    def _evaluate(self, state: TrainState) -> AnswerScore | None:
        """The score on held-out data; None where the source has nothing to judge."""
        config = self.config
        source = config.source("test")
        if not source.evaluated_kinds:
            return None
        batches = evaluation_batches(config.data, config.model, source)
        try:
            return evaluate_answers(self.engine, state, batches)
        finally:
            batches.close()


def _write_score(metrics: MetricsWriter, step: int, score: AnswerScore | None) -> None:
    if score is not None:
        metrics.write(step, {"accuracy": score.accuracy})


def describe_devices() -> str:
    """The devices there are, for people."""
    devices = jax.devices()
    return f"{len(devices)} x {devices[0].device_kind}, {jax.process_count()} process(es)"
