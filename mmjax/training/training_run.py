"""The state of a run: the placed model, its data and checkpoints, which the training loop and the trainer step."""

import contextlib
import functools
import logging
import os
import pathlib
import weakref
from collections.abc import Callable
from typing import Any, Self

import jax

from configs.common.errors import UserError
from data.packing.batch_spec import global_batch_spec
from data.packing.dealt_phases import row_values
from data.packing.global_batch import GlobalBatch
from data.packing.pipeline import evaluation_batches
from data.packing.rows.refusals import remove_refusal_lists
from mmjax.training.batches import open_batches, row_order_request
from mmjax.training.checkpoints.discovery import refuse_existing_checkpoints
from mmjax.training.checkpoints.manager import CheckpointManager, CheckpointNotWrittenError
from mmjax.training.checkpoints.remote_folder import RemoteFolder
from mmjax.training.config import TrainConfig, load_configured_plan
from mmjax.training.engine.compilation import compile_evaluation
from mmjax.training.engine.placement import check_processes
from mmjax.training.engine.shared_programs import engine_with_shared_programs
from mmjax.training.engine.step_recorder import StepRecorder
from mmjax.training.evaluation import AnswerScore, EvaluationStoppedError, evaluate_answers
from mmjax.training.heartbeat.heartbeat import Heartbeat
from mmjax.training.heartbeat.item_agreement import agreed_batch_and_state, agreed_batches
from mmjax.training.metrics.activity import COMPILING, EVALUATING, Activity, ShowsActivities
from mmjax.training.metrics.flops import value_flops
from mmjax.training.metrics.progress import NullProgress
from mmjax.training.metrics.step_timer import StepTimer
from mmjax.training.metrics.step_window import StepWindow
from mmjax.training.run_files import local_workdir, write_run_files
from mmjax.training.steps import DispatchedStep, NonFiniteStepError, StepResult
from mmjax.training.workdir_lock import locked_workdir
from mmjax.weights.initialization import parameter_initializer
from sharding.costs.profiled import Profile
from sharding.plans.plan import Plan, as_plan
from sharding.runtime.communication_check import check_communication
from sharding.runtime.coordination import wait_for_processes
from sharding.runtime.pipeline import TrainState

_LOG = logging.getLogger(__name__)


class TrainingRun:
    """The state of a configured run on a plan: the placed model, its data and its checkpoints, trained step by step.

    `mmjax.training.trainer.Trainer` is the run as users hold it, `mmjax.training.train_loop` trains it to its end.

    Args:
        config: The run.
        plan: The placement of the model, or a plan file; by default the configured plan.
        workdir: Folder of the run, for checkpoints, plan, tokenizer and prompt format; None to save nothing.
        resume: Whether to continue from the newest whole checkpoint.
        profile: Measured times by which rows are ordered for the plan (`TrainConfig.reordering`); without one, the
            analytic costs of the devices.

    Attributes:
        config: The run.
        workdir: Folder of the run; None if nothing is saved.
        engine: The model on the plan.
        batches: The iterator of global batches.
        steps_done: Number of updates that made the current state.
        window: The finished steps that no report contains yet.
        evaluation_is_due: Whether the evaluation after the last step was stopped.
        heartbeat: Heartbeat of this process, until the run is closed.
        checkpoints: The checkpoints in the workdir; None without one.
        value_flops: Model FLOPs of each module for one token, patch, frame or image.

    Raises:
        UserError: The workdir holds checkpoints and `resume` is not set, or the other way round; or the checkpoint has
            more steps than the configuration asks for.
        WorkdirInUseError: Another run holds the workdir, which this one holds until it is closed.
        PlanError: The plan cannot hold the model or the batch.
        DataError: The data set does not fit the model or the data configuration.
    """

    def __init__(
        self,
        config: TrainConfig,
        plan: Plan | str | os.PathLike[str] | None = None,
        workdir: str | os.PathLike[str] | None = None,
        resume: bool = False,
        *,
        profile: Profile | None = None,
    ) -> None:
        self.config = config
        self.workdir = None if workdir is None else local_workdir(workdir)
        plan = as_plan(plan or load_configured_plan(config, jax.device_count())[0])
        if resume and self.workdir is None:
            raise UserError("resume=True needs workdir: the folder of the run to continue")
        self._opened = contextlib.ExitStack()
        # A program that ends without `close` gives the workdir back: as this is registered first, it happens after the
        # heartbeat has found out whether an error ends the program.
        weakref.finalize(self, self._opened.close)
        with contextlib.ExitStack() as opened:
            self.heartbeat = opened.enter_context(Heartbeat(config.heartbeat_timeout, config.progress_timeout))
            if self.workdir is not None:
                opened.enter_context(locked_workdir(self.workdir, takes=jax.process_index() == 0))
            self._prepare(plan, resume, profile)
            self.heartbeat.started()
            self._opened.push(opened.pop_all())

    def _prepare(self, plan: Plan, resume: bool, profile: Profile | None) -> None:
        """Opens the data and the checkpoints, and places the model; the workdir is locked."""
        config, workdir = self.config, self.workdir
        folder = workdir and workdir / "checkpoints"
        remote = RemoteFolder(config.remote_checkpoints, config.remote_retention) if config.remote_checkpoints else None
        if folder and not resume:
            refuse_existing_checkpoints(folder, remote)
        self._refused_folder: pathlib.Path | None = None
        published = (config.pretrained_weights, config.pretrained_changes)
        self._initializer = None if resume else parameter_initializer(config.model, config.seed, *published)
        dataset = config.dataset("train")
        self.tokenizer, self.prompt_format = dataset.tokenizer, dataset.prompt_format
        batch_spec = global_batch_spec(config.data, config.model)
        check_processes(plan, jax.devices())
        self.engine = engine_with_shared_programs(config.model, plan, batch_spec.arrays, config.engine_settings)
        self.heartbeat.op_log = self.engine.executor.op_log
        self._requirements = self.engine.batch_requirements(config.data.rows)
        device_kind = jax.devices()[0].device_kind
        self._row_order = row_order_request(config, plan, device_kind, profile, jax.process_count())
        self.batches = open_batches(config, dataset, self._row_order, self._requirements)
        if workdir is not None:
            # Each process refuses samples of the rows that it loads, so each has lists of its own.
            process = jax.process_index()
            self._refused_folder = workdir / (f"process_{process}" if process else "")
            if not resume:
                for lists in (self._refused_folder, self._refused_folder / "test"):
                    remove_refusal_lists(lists)
            self.batches.list_refused_in(self._refused_folder)
        self.checkpoints = folder and CheckpointManager(folder, config.model, config.retention, remote)
        self.steps_done, self.window = 0, StepWindow(config.model.backbone.name)
        self._communication_checked = self._evaluation_compiled = self.evaluation_is_due = False
        self._state: TrainState | None = None
        self._peeked: tuple[GlobalBatch, dict[str, Any]] | None = None
        if self.checkpoints and resume:
            self._restore(self.checkpoints, str(folder))
        values = row_values(config.model, batch_spec.arrays)
        self.value_flops = value_flops(self.engine.modules, batch_spec.arrays, values, device_kind)
        if workdir is not None and jax.process_index() == 0:
            write_run_files(workdir, self.engine.plan, self.tokenizer, self.prompt_format)

    def _restore(self, checkpoints: CheckpointManager, folder: str) -> None:
        """Continues from the newest whole checkpoint: its state, its place in the data and its unreported steps."""
        with self.heartbeat.phase("restoring"):
            self._state, host_state, self.steps_done = checkpoints.restore(self.engine)
        self.heartbeat.step = self.steps_done
        try:
            self.batches.set_state(host_state["data"])
            self.window.set_state(host_state["window"])
            self.evaluation_is_due = bool(host_state["evaluation_is_due"])
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise UserError(
                f"the checkpoint of step {self.steps_done} in {folder} has the state of another data pipeline: "
                f"{type(error).__name__}: {error}"
            ) from error
        if self.steps_done > self.config.steps:
            raise UserError(
                f"TrainConfig.steps is {self.config.steps}, and {self.steps_done} steps are done in {self.workdir}; "
                f"raise steps above {self.steps_done} to train on, or choose another workdir"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            self.heartbeat.fail(error)
        try:
            self.close()
        except CheckpointNotWrittenError as not_written:
            if error is None:
                raise
            _LOG.error("%s", not_written)  # the first error is the one that leaves

    @property
    def state(self) -> TrainState:
        """The training state, which the next step donates; made at the first use, when communication is checked too.

        Raises:
            CommunicationError: Two stages cannot exchange arrays; names them.
        """
        if not self._communication_checked:
            with self.heartbeat.phase("checking communication"):
                wait_for_processes("the communication check")
                check_communication(self.engine.executor)
            self._communication_checked = True
        if self._state is None:
            with self.heartbeat.phase("initializing"):
                self._state = self.engine.initial_state(self._initializer)
        return self._state

    def dispatch_step(self, timer: StepTimer, recorder: StepRecorder | None = None) -> DispatchedStep:
        """Takes the next batch and launches a step on it; waits for the devices only where the step is recorded."""
        with timer.part("data"):
            batch, data_state = self._peek_batch()
            self._peeked = None
            self.heartbeat.progressed()
        state = self.state
        with timer.part("dispatch"):
            placed = self.engine.place_batch(batch.arrays, self.steps_done, batch.exchange_tables)
            recording = recorder.record(vars(state), placed) if recorder else contextlib.nullcontext()
            with recording as callback:
                self._state, summary = self.engine.executor.step(state, placed, callback)
        self.steps_done += 1
        self.heartbeat.step = self.steps_done
        return DispatchedStep(step=self.steps_done, summary=summary, batch=batch, data_state=data_state)

    def finish_step(self, dispatched: DispatchedStep) -> StepResult:
        """Waits for a step. If it was not finite, the devices have kept the state before it: saves that and raises."""
        summary = dispatched.summary
        losses, gradient_norm = self.engine.losses_by_name(summary), float(summary.gradient_norm)
        self.heartbeat.step_finished(
            dispatched.step,
            f"{losses} {gradient_norm} {dispatched.batch.real_and_capacity} {dispatched.batch.targets}",
        )
        if float(summary.all_finite) > 0:
            self.window.add(losses, gradient_norm, dispatched.batch)
            return StepResult(step=dispatched.step, losses=losses, gradient_norm=gradient_norm)
        steps_before, saved = dispatched.step - 1, ""
        if self.checkpoints:
            try:
                self._save(steps_before, dispatched.data_state)
                self.checkpoints.wait()
                saved = f", and the state after step {steps_before} is saved"
            except CheckpointNotWrittenError as error:
                saved = f", and {error}"
        samples = sorted({int(sample) for sample in dispatched.batch.sample_ids.flat if sample >= 0})
        raise NonFiniteStepError(
            f"step {dispatched.step}: losses {losses}, gradient norm {gradient_norm}; "
            f"no parameter was changed by it{saved}. Its samples: {samples}"
        )

    def evaluate(
        self, progress: ShowsActivities | None = None, stop_requested: Callable[[], bool] = lambda: False
    ) -> AnswerScore | None:
        """Computes the score on the split `test`; None where the data set has no questions to score.

        Args:
            progress: Shows the programs compiled, at the first evaluation, and the batches evaluated.
            stop_requested: See `evaluate_answers`.

        Raises:
            EvaluationStoppedError: A stop was requested before the last batch.
            ItemDisagreementError: Processes have dealt the items of a batch differently.
        """

        def show(activity: Activity, done: int, total: int | None, score: AnswerScore | None = None) -> None:
            self.heartbeat.progressed()
            remark = f"{score.accuracy:.1%} right of {score.counted()}" if score and score.questions else ""
            (progress or NullProgress()).show(activity, done, total, remark)

        dataset = self.config.dataset("test")
        if not dataset.evaluated_kinds:
            return None
        batches = evaluation_batches(self.config.data, self.config.model, dataset, requirements=self._requirements)
        if self._refused_folder:
            batches.list_refused_in(self._refused_folder / "test")
        with contextlib.closing(batches), self.heartbeat.phase("evaluating"):
            if not self._evaluation_compiled:
                if stop_requested():
                    raise EvaluationStoppedError
                compile_evaluation(self.engine, functools.partial(show, COMPILING))
                wait_for_processes("the evaluation")
                self._evaluation_compiled = True
            show_batches = functools.partial(show, EVALUATING)
            agreed = agreed_batches(batches, self.engine.dealt_phases, self.config.progress_timeout)
            score = evaluate_answers(self.engine, self.state, agreed, show_batches, stop_requested)
        if self.checkpoints:
            self.checkpoints.add_score(self.steps_done, score.accuracy)
        return score

    def save(self) -> None:
        """Saves a checkpoint of the current state, in the background; the same step again does nothing.

        Raises:
            UserError: The trainer has no workdir.
        """
        if self.checkpoints is None:
            raise UserError("this trainer has no workdir to save to; pass workdir=...")
        self._save(self.steps_done, self._data_state())

    def close(self) -> None:
        """Ends the data pipeline's threads and the writing of checkpoints, and gives the workdir back."""
        with self._opened:
            self.batches.close()
            if self.checkpoints:
                self.checkpoints.close()

    def _peek_batch(self) -> tuple[GlobalBatch, dict[str, Any]]:
        """Returns the next batch, on whose items all processes agree, and the data state before it."""
        if self._peeked is None:
            phases, patience = self.engine.dealt_phases, self.config.progress_timeout
            self._peeked = agreed_batch_and_state(self.batches, phases, patience)
        return self._peeked

    def _data_state(self) -> dict[str, Any]:
        """Returns the data state from which the next batch follows."""
        return self._peeked[1] if self._peeked else self.batches.get_state()

    def _save(self, steps_done: int, data_state: dict[str, Any]) -> None:
        """Saves the state after `steps_done` steps, which are all finished."""
        assert self.checkpoints is not None
        host_state = {
            "data": data_state,
            "window": self.window.get_state(),
            "evaluation_is_due": self.evaluation_is_due,
        }
        with self.heartbeat.phase("saving"):
            self.checkpoints.save(steps_done, self.engine, self.state, host_state)
